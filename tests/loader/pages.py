"""Code of docs/loader.md, to be run as it is there."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "loader.md"


def block(containing: str) -> str:
    """The one indented block of the page that contains this."""
    found = re.findall(r"(?:^    .*\n(?:[ \t]*\n(?=    ))?)+", _PAGE.read_text(), re.MULTILINE)
    (one,) = [text for text in found if containing in text]
    return textwrap.dedent(one)
