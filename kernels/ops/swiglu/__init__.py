"""Norm, a gated hidden layer and a third layer: `swiglu_transition`."""

KERNELS = {"elementwise": "swiglu swiglu_grad", "gemm": "swiglu_rows swiglu_weights"}
