"""One sample on several GPUs: the stacks on shards, beside a model that knows nothing of it."""
