"""Attention of tokens that another tensor conditions: `conditioned_attention`."""

KERNELS = {
    "elementwise": "gated_heads gated_heads_grad",
}
"""Its kernels, without `_kernel`, by what a run's report counts them as."""
