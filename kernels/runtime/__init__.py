"""Shared by all operators: Triton, launches, tile sizes, input checks, kernels, torch.library."""
