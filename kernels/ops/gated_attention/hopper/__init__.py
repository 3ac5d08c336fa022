"""The gated output of an attention in Gluon for Hopper GPUs."""
