"""Errors of points seen from frames, summed over all of both: what FAPE is made of."""
