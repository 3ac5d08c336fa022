"""Records of a dataset as inputs of other programs."""
