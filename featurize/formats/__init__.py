"""Parsers: alignment, sequence and hit formats, text to arrays."""
