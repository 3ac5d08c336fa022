"""A training run: its settings, the loop, the optimizer, checkpoints, ranks and logs.

`train.py` puts a run together; `loop.py` knows nothing of proteins.
"""
