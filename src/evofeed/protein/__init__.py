"""What a protein is here: residues, geometry, the feature table, records."""
