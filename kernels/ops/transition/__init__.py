"""Norm and two layers with relu between: `transition`."""

KERNELS = {"elementwise": "relu_grad", "gemm": "transition_grad"}
