"""Boltz 1: its crop, rows and features, as its own training code makes them."""
