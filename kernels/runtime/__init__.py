"""What operators share: Triton, its launches, tile sizes, checks, kernels, torch.library."""
