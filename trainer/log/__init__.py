"""Logs of a run: step times, `steps.jsonl`, TensorBoard and Weights & Biases."""
