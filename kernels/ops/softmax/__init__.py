"""Softmax over keys with a bias and a mask: `masked_softmax`."""

KERNELS = {"attention": "softmax_backward softmax_forward"}
