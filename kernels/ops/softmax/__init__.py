"""Softmax over keys with a bias and a mask: `masked_softmax`."""

KERNELS = {
    "attention": "softmax_backward softmax_forward",
}
"""Its kernels, without `_kernel`, by what a run's report counts them as."""
