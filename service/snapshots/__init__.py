"""Open datasets and snapshots, and queries on them."""
