"""Atoms of different residues that are closer than their radii allow."""
