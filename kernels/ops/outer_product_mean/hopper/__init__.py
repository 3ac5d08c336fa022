"""The outer product mean in Gluon for Hopper GPUs."""
