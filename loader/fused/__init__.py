"""The GPU path: a sample's features in eight Triton kernels, whatever its recycles."""
