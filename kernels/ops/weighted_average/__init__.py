"""Averages of an MSA's rows, weighted by the pairs."""

KERNELS = {
    "gemm": "average shares_grad",
}
"""Its kernels, without `_kernel`, by what a run's report counts them as."""
