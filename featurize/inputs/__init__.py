"""Inputs: layouts, the files of each chain, and their paths."""
