"""Complexes: chains paired, merged and cropped, and the features made of them."""
