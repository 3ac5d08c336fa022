"""Attention of every pair to the templates at that pair."""
