"""Datasets and their snapshots, held open, and what is asked of them."""
