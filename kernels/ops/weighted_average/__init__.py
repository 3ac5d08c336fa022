"""Averages of an MSA's rows, weighted by the pairs."""

KERNELS = {"gemm": "average shares_grad"}
