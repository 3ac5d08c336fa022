"""Layer norm over the last axis: `layer_norm`."""

KERNELS = {
    "norm": "norm_backward norm_forward",
}
"""Its kernels, without `_kernel`, by what a run's report counts them as."""
