"""A SwiGLU transition that another tensor conditions: `conditioned_transition`."""

KERNELS = {"elementwise": "gated_sum gated_sum_grad"}
