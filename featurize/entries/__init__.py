"""mmCIF files, alignments and components to records of whole entries, for the all-atom models."""
