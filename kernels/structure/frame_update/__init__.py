"""A backbone update of all residues' frames."""
