"""Both ends of a triangle multiplication in Gluon for Hopper GPUs."""
