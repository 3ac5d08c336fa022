"""The attention bias from the pairs: `pair_bias`."""
