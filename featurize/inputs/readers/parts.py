"""Parts of files with the rows of several chains, which are read once for each chain.

A `FileRef`'s `part` names a kind of file and its argument: `complex 1` is the second chain of
a complex in ColabFold's a3m.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

from evofeed.featurize.config import FeaturizeConfig, InputCaps
from evofeed.featurize.formats import colabfold_a3m
from evofeed.featurize.formats.a3m import parse_a3m
from evofeed.featurize.formats.msa import Msa
from evofeed.featurize.formats.reading import FileRef, file_ref, read_bytes
from evofeed.featurize.formats.stockholm import parse_stockholm
from evofeed.featurize.inputs.readers import job_files, tables

_ROWS_OF: Final[dict[str, Callable[[bytes, str, str], bytes]]] = {
    "complex": colabfold_a3m.rows_of,
    "paired": functools.partial(colabfold_a3m.rows_of, paired=True),
    "job": job_files.rows_of,
    "table": tables.rows_of,
}


def read_part(ref: FileRef, caps: InputCaps | None = None) -> bytes:
    """The decompressed content of an input, or the a3m rows of one chain if it is a part.

    Raises:
        InputError: as `read_bytes`; the file is of another kind, or lacks that part.
    """
    if not ref.part:
        return read_bytes(ref, caps)
    kind, _, argument = ref.part.partition(" ")
    return _ROWS_OF[kind](read_bytes(file_ref(ref.path), caps), argument, ref.path)


def parse_msa(data: bytes, ref: FileRef, config: FeaturizeConfig) -> Msa:
    """The alignment of an input, a3m or Stockholm by its name.

    Raises:
        MsaError: it is not an alignment; names file and line.
    """
    parse = parse_stockholm if ref.plain_name.endswith(".sto") else parse_a3m
    return parse(data, path=ref.path, strict_letters=config.strict_letters, caps=config.caps)
