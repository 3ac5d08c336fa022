"""Softmax over keys with a bias and a mask: `masked_softmax`."""
