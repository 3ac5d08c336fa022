"""Counts with their noun, as text, and of done work."""

from __future__ import annotations

from collections.abc import Callable

ReportDone = Callable[[int, int], None]
"""Called with how many units of some work are done, and how many there are."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 chain`, `2,000 chains`; `plural` if it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
