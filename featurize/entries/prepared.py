"""Which project has prepared a folder, and how its entries are read."""

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


def prepared_set(place: str, alignments: str) -> PreparedSet | None:
    """The set in a folder; None if no project has prepared it.

    Raises:
        InputError: the set's own list is damaged.
    """
    roads = (boltz_set, openfold3_set, protenix_set)
    return next(filter(None, (road(place, alignments) for road in roads)), None)


def read_target(
    project: str, path: str, about: str, *alignments: str, components: ComponentTable | None = None
) -> Target:
    """What a prepared structure gives; `about` is what the set's list says of it, JSON. The
    dictionary has what Boltz 2 leaves to it.

    Raises:
        InputError: a file is damaged or another version's, holds more than arrays and plain values,
            or its tables contradict each other.
    """
    read, make = _READERS[project]
    tables = read(read_bytes(file_ref(path), InputCaps()), path)
    queries = {representative(file): query_of(file) for file in alignments}
    try:
        more = {"components": components or ComponentTable({})} if project == "boltz" else {}
        return make(parse_json(about), tables, queries, **more)
    except TABLE_ERRORS as error:
        raise InputError(f"no structure that {project} prepared: {error!r}", path=path) from None
