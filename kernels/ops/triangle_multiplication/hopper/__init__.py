"""Input and output of a triangle multiplication in Gluon for Hopper GPUs."""
