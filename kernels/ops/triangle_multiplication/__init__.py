"""Triangle multiplication, outgoing and incoming: `triangle_multiplication`."""

KERNELS = {
    "elementwise": "gated_columns gated_columns_grad",
    "gemm": "projection_sums triangle_in triangle_in_grad triangle_out triangle_out_grad "
    "triangle_projections",
    "norm": "norm_columns norm_columns_grad",
}
