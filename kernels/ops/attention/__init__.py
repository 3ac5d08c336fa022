"""Attention with a pair bias and a key mask: `biased_attention`."""

KERNELS = {
    "attention": "backward backward_db backward_dkv backward_dq bias_gradient delta forward mask",
}
