"""One line of the check-list, and what its readers share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Texts = Mapping[str, str]
"""What a machine says of itself, by the names of `machine_texts`; what it lacks is absent."""


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, what was found, and what to do about it; nothing to do: all is well."""

    name: str
    found: str
    to_do: str = ""


def numbers_in(listing: str) -> set[int]:
    """Numbers of a kernel's list: `0-2,8` is 0, 1, 2, 8."""
    found: set[int] = set()
    for low, high in re.findall(r"(\d+)(?:-(\d+))?", listing):
        found.update(range(int(low), int(high or low) + 1))
    return found


def field(text: str, name: str) -> str:
    """What follows `name:` or `name` and blanks at the beginning of a line; empty if nothing."""
    found = re.search(rf"^{re.escape(name)}:?[ \t]+(.*?)[ \t]*$", text, re.MULTILINE)
    return found[1] if found else ""


def names(some: Iterable[object]) -> str:
    """`0, 1, 4`."""
    return ", ".join(map(str, some))
