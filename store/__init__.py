"""Immutable Arrow shards of chain records, their index, and snapshots of them."""

__all__: list[str] = []
