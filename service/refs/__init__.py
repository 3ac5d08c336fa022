"""Refs: how they move, what must hold for it, and where they have been."""
