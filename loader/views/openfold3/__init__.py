"""Entries as OpenFold3 sees them."""
