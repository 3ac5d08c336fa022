"""Prepared sets of the three projects: recognition of a folder and reading of its entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from evofeed.base.errors import InputError
from evofeed.base.files import parse_json
from evofeed.featurize.config import InputCaps
from evofeed.featurize.entries.alignments import query_of
from evofeed.featurize.entries.boltz_targets import boltz_set, boltz_target
from evofeed.featurize.entries.openfold3_targets import openfold3_set, openfold3_target
from evofeed.featurize.entries.protenix_targets import protenix_set, protenix_target
from evofeed.featurize.entries.targets import PreparedSet, Target, representative
from evofeed.featurize.formats.packed_arrays import TABLE_ERRORS, Npz, unpickle
from evofeed.featurize.formats.reading import file_ref, read_bytes
from evofeed.protein.components import ComponentTable

_READERS: Final[dict[str, tuple[Callable[..., Any], Callable[..., Target]]]] = {
    "boltz": (Npz, boltz_target),
    "openfold3": (Npz, openfold3_target),
    "protenix": (unpickle, protenix_target),
}


def prepared_set(folder: str, alignments: str) -> PreparedSet | None:
    """The set in a folder; None if no project prepared it.

    Raises:
        InputError: the set's list of entries is damaged.
    """
    readers = (boltz_set, openfold3_set, protenix_set)
    return next(filter(None, (read(folder, alignments) for read in readers)), None)


def read_target(
    project: str, path: str, item: str, *alignments: str, components: ComponentTable | None = None
) -> Target:
    """The target of a prepared structure, with its item in the set's list (JSON).

    Boltz 2 takes elements and charges from the dictionary `components`.

    Raises:
        InputError: a file is damaged or another version's, holds more than arrays and plain values,
            or its tables contradict each other.
    """
    read, build = _READERS[project]
    tables = read(read_bytes(file_ref(path), InputCaps()), path)
    queries = {representative(file): query_of(file) for file in alignments}
    try:
        dictionary = {"components": components or ComponentTable({})} if project == "boltz" else {}
        return build(parse_json(item), tables, queries, **dictionary)
    except TABLE_ERRORS as error:
        raise InputError(f"not a structure that {project} prepared: {error!r}", path=path) from None
