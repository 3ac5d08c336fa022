"""Gated self-attention with its norm, output, dropout and residual: `gated_attention`."""

KERNELS = {
    "gemm": "gated_output gated_output_grad",
}
"""Its kernels, without `_kernel`, by what a run's report counts them as."""
