"""One sample on several GPUs: sharded stacks for a model whose code has no parallelism."""
