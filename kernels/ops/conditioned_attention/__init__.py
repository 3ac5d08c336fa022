"""Attention of tokens that another tensor conditions: `conditioned_attention`."""
