"""Files beside the alignments of an input: structures, sequences, templates, dates."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from evofeed.base.errors import InputError
from evofeed.featurize.formats.fasta import SUFFIXES as FASTA
from evofeed.featurize.formats.reading import PACKED, plain
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.featurize.structures.structure_files import (
    entry_of,
    structure_files,
    structures_by_entry,
)

STRUCTURE_DIRS: Final = (
    *("mmcif", "mmcifs", "pdb_mmcif/mmcif_files", "mmcif_files", "data", "structures", "pdb"),
)
_TEMPLATE_DIRS: Final = ("template_mmcif", "template_mmcifs", "templates")
_OURS: Final = ("jobs", "leases", "refs", "shards")
"""Folders of a dataset, of which the first is there as soon as a job has begun."""
FASTA_DIRS: Final = ("fasta", "fastas", "fasta_dir")
_CHAIN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=-]{0,199}$")


@dataclass(frozen=True, slots=True)
class SideFiles:
    """What is beside the alignments of a data set.

    Attributes:
        structures: file by entry or chain.
        fastas: file by chain.
        template_mmcif_dir, release_dates, obsolete_pdbs: as in `ChainSource`.
        faults: chain ids that are none, and the like.
        used: FASTA files whose records are chains.
    """

    structures: Mapping[str, str]
    fastas: Mapping[str, str]
    template_mmcif_dir: str | None
    release_dates: str | None
    obsolete_pdbs: str | None
    is_distillation: bool
    faults: list[InputError]
    used: set[str] = field(default_factory=set)

    @classmethod
    def find(
        cls,
        root: Path,
        given: Mapping[str, str | None],
        faults: list[InputError],
        *,
        is_distillation: bool = False,
    ) -> SideFiles:
        """Look into the places given, by their names in `discover`, or into those of usual names.

        Raises:
            InputError: a folder given is not there.
        """
        structures = folders(given["structure_dir"], root, STRUCTURE_DIRS)
        templates = folders(given["template_mmcif_dir"], root, _TEMPLATE_DIRS) or structures
        by_entry = structures_by_entry(structures, deep=given["structure_dir"] is not None)
        fastas = folders(None, root, FASTA_DIRS)
        return cls(
            structures={**top_structures(root), **by_entry},
            fastas=_index(fastas, FASTA),
            template_mmcif_dir=str(templates[0]) if templates else None,
            release_dates=first_file(root, ("mmcif_cache.json",)),
            obsolete_pdbs=first_file(root, ("obsolete.dat",)),
            is_distillation=is_distillation,
            faults=faults,
        )

    def chain(self, chain_id: str, where: str, **more: Any) -> list[ChainSource]:
        """A chain with its structure or FASTA and `more`; none, and a fault, for a bad id."""
        if not _CHAIN_ID.match(chain_id):
            self.faults.append(
                InputError(
                    f"{chain_id!r} is not a chain id: use letters, digits, _ . + = -, at most 200",
                    path=where,
                )
            )
            return []
        known: dict[str, Any] = {
            "structure": _named(chain_id, self.structures),
            "fasta": self.fastas.get(chain_id),
            "template_mmcif_dir": self.template_mmcif_dir,
            "release_dates": self.release_dates,
            "obsolete_pdbs": self.obsolete_pdbs,
            "is_distillation": self.is_distillation,
        }
        return [ChainSource(chain_id, **(known | more))]

    def copy_of(self, original: ChainSource, chain_id: str) -> ChainSource:
        """A chain with another's alignments and a structure of its own."""
        (fresh, *_) = [*self.chain(chain_id, original.chain_id), original]
        return dataclasses.replace(
            fresh,
            alignment_dir=original.alignment_dir,
            alignments=original.alignments,
            sequence="" if fresh.structure else original.sequence,
            fasta=fresh.fasta or (None if fresh.structure else original.fasta),
        )


def top_structures(root: Path) -> dict[str, str]:
    """Structure files of a folder itself, by entry."""
    return {
        entry_of(plain(path.name)): str(path)
        for path in structure_files(root, divided=False)
        if path.is_file()
    }


def folders(given: str | None, root: Path, names: Iterable[str]) -> list[Path]:
    """The folder given, or those of the names that are there and no dataset.

    Raises:
        InputError: the folder given is not there.
    """
    if given is not None:
        if not Path(given).is_dir():
            raise InputError("no such folder", path=given)
        return [Path(given)]
    places = [root / name for name in names if (root / name).is_dir()]
    # `data/` may be a dataset of ours, and hold structures.
    return [place for place in places if not first_dir(place, _OURS)]


def first_dir(root: Path, names: Iterable[str]) -> Path | None:
    """The first of the folders that is there."""
    return next((root / name for name in names if (root / name).is_dir()), None)


def first_file(root: Path, names: Iterable[str]) -> str | None:
    """The first of the files that is there."""
    return next((str(root / name) for name in names if (root / name).is_file()), None)


def _index(places: Iterable[Path], suffixes: Iterable[str]) -> dict[str, str]:
    """Stem -> file with one of the suffixes, the first kind winning, then the first folder."""
    found: dict[str, str] = {}
    entries = [entry for folder in places for entry in os.scandir(folder)]
    for kind in (suffix + packed for suffix in suffixes for packed in ("", *PACKED)):
        for entry in entries:
            if entry.name.lower().endswith(kind):
                found.setdefault(entry.name[: -len(kind)], entry.path)
    return found


def _named(chain_id: str, structures: Mapping[str, str]) -> str | None:
    entry = chain_id.rpartition("_")[0]
    names = (entry, entry.lower(), chain_id)
    return next((structures[name] for name in names if name and name in structures), None)
