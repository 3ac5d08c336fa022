"""Files of weights of OpenFold and AlphaFold2."""
