"""A norm whose scale and shift another tensor gives: `adaptive_norm`."""
