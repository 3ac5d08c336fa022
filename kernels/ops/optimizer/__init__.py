"""Clipping, Adam and the moving average in one pass: `FusedAdamEMA`."""
