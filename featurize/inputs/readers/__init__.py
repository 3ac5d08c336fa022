"""Readers of other programs' inputs: alignments, job files and tables."""
