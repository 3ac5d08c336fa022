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


def field(text: str, name: str) -> str:
    """What follows `name:` or `name` and blanks at the beginning of a line; empty if nothing."""
    found = re.search(rf"^{re.escape(name)}:?[ \t]+(.*?)[ \t]*$", text, re.MULTILINE)
    return found[1] if found else ""


def names(some: Iterable[object]) -> str:
    """`0, 1, 4`."""
    return ", ".join(map(str, some))
