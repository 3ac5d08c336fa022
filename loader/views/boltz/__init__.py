"""Crop, rows and features of Boltz 1, as in its training code."""
