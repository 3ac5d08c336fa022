"""Which chains of a snapshot: typed filters on the columns of its index."""
