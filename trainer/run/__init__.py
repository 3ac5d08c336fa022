"""A training run: its settings, the loop, the optimizer, checkpoints, ranks and logs.

`train.py` builds a run from its parts; `loop.py` has no code about proteins.
"""
