"""Structure files: mmCIF and PDB to chains with sequence and atoms."""
