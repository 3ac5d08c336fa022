"""The attention bias made from the pairs: `pair_bias`."""

KERNELS = {"elementwise": "heads_last", "norm": "pair_norm_backward"}
