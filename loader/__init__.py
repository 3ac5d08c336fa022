"""Shards to batches that already lie on the GPU."""

__all__: list[str] = []
