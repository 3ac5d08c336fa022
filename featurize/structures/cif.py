"""mmCIF as gemmi reads its syntax: a file's block, and the texts of its items."""

from __future__ import annotations

import re
from typing import Any, Final

from evofeed.base.errors import MmcifError

UNSET: Final = (".", "?")
"""mmCIF values for "does not apply" and "unknown"."""
RESOLUTIONS: Final = (
    "_refine.ls_d_res_high",
    "_em_3d_reconstruction.resolution",
    "_reflns.d_resolution_high",
)
"""Items that give a resolution, in order of precedence."""


def read_block(data: bytes, path: str = "") -> Any:
    """gemmi's first block of mmCIF text.

    Raises:
        MmcifError: it is not mmCIF; names the line if gemmi does.
    """
    from gemmi import cif

    if b"\0" in data:
        raise MmcifError("holds NUL bytes: not an mmCIF text file", path=path)
    if not data.strip():
        raise MmcifError("Empty file.", path=path)
    try:
        document = cif.read_string(data)
    except (ValueError, RuntimeError) as error:
        match = re.match(r"\w*:(\d+)", str(error))
        line = int(match[1]) if match else None
        raise MmcifError(f"not mmCIF: {error}", path=path, line=line) from None
    if len(document) == 0:
        raise MmcifError("no data block in it", path=path)
    return document[0]


def values_of(block: Any, tag: str) -> list[str]:
    """All values of an item, unquoted; empty if it is missing."""
    return [unquoted(value) for value in block.find_values(tag)]


def unquoted(value: str) -> str:
    """A value without its quotes."""
    from gemmi import cif

    return str(cif.as_string(value)) if value[:1] in "'\";" else value


def pairs_of(block: Any, first_tag: str, second_tag: str) -> list[tuple[str, str]]:
    """Two items row by row; empty if either is missing."""
    return list(zip(values_of(block, first_tag), values_of(block, second_tag), strict=False))
