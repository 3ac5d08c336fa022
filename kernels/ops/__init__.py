"""One folder an operator, with the same file names in each: see docs/kernels.md."""
