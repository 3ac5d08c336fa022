"""Places that a user names beside an input: one that fits no chain is a mistake, not a choice."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from evofeed.base.errors import InputError
from evofeed.featurize.formats.reading import plain
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.featurize.structures.structure_files import SUFFIXES

_SHOWN: Final = 3


def refuse_unfit(
    sources: Sequence[ChainSource],
    *,
    structure_dir: str | None = None,
    template_mmcif_dir: str | None = None,
    fasta_dir: str | None = None,
    structure_index: str | None = None,
) -> None:
    """Raise for the first place that was named and that no chain has anything from.

    Args:
        sources: the chains, at least one.
        structure_dir, template_mmcif_dir, fasta_dir, structure_index: as for `discover`.

    Raises:
        InputError: says what the place holds and what was looked for.
    """
    chain_id, entry = sources[0].chain_id, sources[0].entry_id
    if structure_dir and not any(_below(structure_dir, s.structure) for s in sources):
        _refuse(structure_dir, "structure", f"{entry}.cif or {entry}.pdb for chain {chain_id}")
    if fasta_dir and not any(_below(fasta_dir, source.fasta) for source in sources):
        _refuse(fasta_dir, "sequence", f"{chain_id}.fasta")
    if structure_index and not any(source.structure_span for source in sources):
        raise InputError(f"no chain here is in it, such as {chain_id}", path=structure_index)
    if template_mmcif_dir and not any(map(_is_structure, _files(Path(template_mmcif_dir)))):
        _refuse(template_mmcif_dir, "template structure", "<pdb id>.cif files")


def _refuse(folder: str, what: str, expected: str) -> None:
    here = [str(path.relative_to(folder)) for path in itertools.islice(_files(Path(folder)), 4)]
    more = ", …" if len(here) > _SHOWN else ""
    holds = ", ".join(here[:_SHOWN]) + more if here else "no file"
    raise InputError(
        f"no {what} here is a chain's of the input: expected {expected}, found {holds}",
        path=folder,
    )


def _below(folder: str, path: str | None) -> bool:
    return path is not None and Path(folder) in Path(path).parents


def _is_structure(path: Path) -> bool:
    return plain(path.name).lower().endswith(SUFFIXES)


def _files(folder: Path) -> Iterator[Path]:
    for home, below, names in os.walk(folder):
        below.sort()
        yield from (Path(home) / name for name in sorted(names))
