"""Layer norm over the last axis: `layer_norm`."""

KERNELS = {"norm": "norm_backward norm_forward"}
