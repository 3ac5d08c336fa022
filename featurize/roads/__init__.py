"""Inputs of other programs, one module each: what their files hold for one chain.

A file with the rows of several chains is read once for each of them, by a
`FileRef` whose `part` is the name of a road and what that road makes of it:
`complex 1` is the second chain of a complex in ColabFold's a3m.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from evofeed.featurize.reading import FileRef

__all__ = ["part_of"]

_HOMES: Final = {"complex": "colabfold", "job": "complexes", "table": "tables"}
"""Module of each road; its `rows_of(data, argument, path)` gives a3m text."""


def part_of(data: bytes, ref: FileRef) -> bytes:
    """The a3m rows of one chain.

    Args:
        data: content of the file, decompressed.
        ref: the file, with the part wanted.

    Raises:
        InputError: the file is not what it was taken for, or lacks that part.
    """
    road, _, argument = ref.part.partition(" ")
    module = importlib.import_module(f"{__name__}.{_HOMES[road]}")
    rows: bytes = module.rows_of(data, argument, ref.path)
    return rows
