"""Attention of tokens conditioned on another tensor: `conditioned_attention`."""
