"""Proteins: residues, geometry, the feature table, records."""
