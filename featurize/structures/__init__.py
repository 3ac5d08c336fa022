"""Structure files: mmCIF, BinaryCIF and PDB to chains with sequence and atoms."""
