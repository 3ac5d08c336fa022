"""The whole path in one command: files, shards, service, batches, training."""

__all__: list[str] = []
