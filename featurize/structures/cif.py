"""mmCIF as gemmi reads its syntax: a file's block, and the texts of its items."""

from __future__ import annotations

import re
from typing import Any, Final

from evofeed.base.errors import MmcifError

UNSET: Final = (".", "?")
"""How mmCIF writes that a value does not apply, or is not known."""
RESOLUTIONS: Final = (
    "_refine.ls_d_res_high",
    "_em_3d_reconstruction.resolution",
    "_reflns.d_resolution_high",
)
"""Items that give a resolution, in the order in which they count."""


def read_block(data: bytes, path: str = "") -> Any:
    """The first block of mmCIF text, gemmi's.

    Raises:
        MmcifError: it is no mmCIF; names the line where it can.
    """
    from gemmi import cif

    if b"\0" in data:
        raise MmcifError("holds NUL bytes: not an mmCIF text file", path=path)
    if not data.strip():
        raise MmcifError("Empty file.", path=path)
    try:
        document = cif.read_string(data)
    except (ValueError, RuntimeError) as error:
        line = re.match(r"\w*:(\d+)", str(error))
        number = int(line[1]) if line else None
        raise MmcifError(f"not mmCIF: {error}", path=path, line=number) from None
    if len(document) == 0:
        raise MmcifError("no data block in it", path=path)
    return document[0]


def values_of(block: Any, tag: str) -> list[str]:
    """All values of an item, unquoted; empty if it is not there."""
    return [unquoted(value) for value in block.find_values(tag)]


def unquoted(value: str) -> str:
    """A value without the quotes of the file."""
    from gemmi import cif

    return str(cif.as_string(value)) if value[:1] in "'\";" else value


def pairs_of(block: Any, one: str, other: str) -> list[tuple[str, str]]:
    """Two items row by row; none if one of them is missing."""
    return list(zip(values_of(block, one), values_of(block, other), strict=False))
