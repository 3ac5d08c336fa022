"""Gated self-attention with its norm, output, dropout and residual: `gated_attention`."""

KERNELS = {"gemm": "gated_output gated_output_grad"}
