"""Modules and optimizers with the arguments of PyTorch's: norm, attention, LSTM, LAMB, LARS."""
