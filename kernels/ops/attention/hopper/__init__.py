"""Attention in Gluon for Hopper GPUs."""
