"""Clipping, Adam and the moving average in one pass: `FusedAdamEMA`."""

KERNELS = {
    "optimizer": "adam_update scalars square_sum",
}
"""Its kernels, without `_kernel`, by what a run's report counts them as."""
