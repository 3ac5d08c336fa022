"""The attention bias made from the pairs: `pair_bias`."""
