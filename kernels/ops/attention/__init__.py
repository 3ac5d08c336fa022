"""Attention with a pair bias and a key mask: `biased_attention`."""
