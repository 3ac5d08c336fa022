"""Counts with their noun, as text."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 chain`, `2,000 chains`; `plural` if it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
