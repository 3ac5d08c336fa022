"""A norm whose scale and shift another tensor gives: `adaptive_norm`."""

KERNELS = {"norm": "adaptive_norm adaptive_norm_grad"}
