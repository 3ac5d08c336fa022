"""Norm, a gated hidden layer and a third layer: `swiglu_transition`."""
