"""Clipping, Adam and the moving average in one pass: `FusedAdamEMA`."""

KERNELS = {"optimizer": "adam_update scalars square_sum"}
