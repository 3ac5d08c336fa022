"""The loader's GPU path: a sample's features in a dozen Triton kernels, whatever its recycles."""
