"""How many of something, in words."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 chain`, `2,000 chains`; `plural` where an s does not make it."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
