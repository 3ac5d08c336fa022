"""Attention of tokens that another tensor conditions: `conditioned_attention`."""

KERNELS = {"elementwise": "gated_heads_grad"}
