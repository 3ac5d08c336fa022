"""Averages of an MSA's rows, weighted by the pairs."""
