"""Whole entries of all kinds of molecules as OpenFold3, Boltz and Protenix see them."""
