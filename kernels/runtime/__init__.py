"""What operators share: Triton, its launches, tile sizes, checks, kernels, torch.library."""

KERNELS = {
    "communication": "peer_exchange",
    "elementwise": "column_sums gated gated_grad scaled",
    "gemm": "mlp",
    "norm": "norm_rows",
}
