"""Gated self-attention with its norm, output, dropout and residual: `gated_attention`."""
