"""Names of all kernels, by their group in a run's report."""

from __future__ import annotations

from functools import cache

GROUPS = {
    "attention": (
        "attend attend_grad backward backward_db backward_dkv backward_dq bias_gradient delta "
        "forward gated_broadcast_grad mask pool pool_grad softmax_backward softmax_forward"
    ),
    "communication": "peer_exchange",
    "elementwise": (
        "cast column_sums gated gated_columns gated_columns_grad gated_grad heads_last "
        "masked_halves relu_grad scaled swiglu swiglu_grad"
    ),
    "gemm": (
        "average gated_output gated_output_grad mlp outer_dproject outer_dw outer_project "
        "projection_sums shares_grad swiglu_rows swiglu_weights transition_grad triangle_in "
        "triangle_in_grad triangle_out triangle_out_grad triangle_projections"
    ),
    "norm": (
        "adaptive_norm adaptive_norm_grad norm_backward norm_columns norm_columns_grad "
        "norm_forward norm_rows pair_norm_backward"
    ),
    "optimizer": "adam_update scalars square_sum",
}
"""Kernel names without the suffix `_kernel`, by group."""


@cache
def kernel_groups() -> dict[str, str]:
    """Group (`norm`, `attention`, `gemm`, `elementwise`, ...) by kernel name."""
    return {f"{name}_kernel": group for group, names in GROUPS.items() for name in names.split()}
