"""Kernels of the structure module and its losses, in float32: a few numbers for each residue."""
