"""Side files of an input's alignments: structures, sequences, templates, dates."""

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

STRUCTURE_DIRS: Final = ("mmcif", "mmcifs", "pdb_mmcif/mmcif_files", "mmcif_files", "data",
                         "structures", "pdb")  # fmt: skip
_TEMPLATE_DIRS: Final = ("template_mmcif", "template_mmcifs", "templates")
_DATASET_DIRS: Final = ("jobs", "leases", "refs", "shards")
"""Folders of a dataset; a job creates the first when it begins."""
FASTA_DIRS: Final = ("fasta", "fastas", "fasta_dir")
_CHAIN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=-]{0,199}$")


@dataclass(frozen=True, slots=True)
class SideFiles:
    """Files of an input other than its alignments.

    Attributes:
        structures: path by entry or chain.
        fastas: path by chain.
        template_mmcif_dir, release_dates, obsolete_pdbs: as in `ChainSource`.
        problems: receives errors such as invalid chain ids.
        used: FASTA files whose records are chains.
    """

    structures: Mapping[str, str]
    fastas: Mapping[str, str]
    template_mmcif_dir: str | None
    release_dates: str | None
    obsolete_pdbs: str | None
    is_distillation: bool
    problems: list[InputError]
    used: set[str] = field(default_factory=set)

    @classmethod
    def find(
        cls,
        root: Path,
        user_dirs: Mapping[str, str | None],
        problems: list[InputError],
        *,
        is_distillation: bool = False,
    ) -> SideFiles:
        """Side files in the user's folders, by their arguments of `discover`, or in those of usual
        names.

        Raises:
            InputError: a user's folder does not exist.
        """
        structure_dir = user_dirs["structure_dir"]
        structures = folders(structure_dir, root, STRUCTURE_DIRS)
        templates = folders(user_dirs["template_mmcif_dir"], root, _TEMPLATE_DIRS) or structures
        by_entry = {
            entry_of(plain(path.name)): str(path)
            for path in structure_files(root, divided=False)
            if path.is_file()
        }
        by_entry |= structures_by_entry(structures, deep=structure_dir is not None)
        return cls(
            structures=by_entry,
            fastas=_fasta_by_stem(folders(None, root, FASTA_DIRS)),
            template_mmcif_dir=str(templates[0]) if templates else None,
            release_dates=first_file(root, ("mmcif_cache.json",)),
            obsolete_pdbs=first_file(root, ("obsolete.dat",)),
            is_distillation=is_distillation,
            problems=problems,
        )

    def chain(self, chain_id: str, path: str, **fields: Any) -> list[ChainSource]:
        """A chain with its side files and `fields`; none, and a problem of `path`, for a bad id."""
        if not _CHAIN_ID.match(chain_id):
            message = f"{chain_id!r} is not a chain id: use letters, digits, _ . + = -, at most 200"
            self.problems.append(InputError(message, path=path))
            return []
        defaults: dict[str, Any] = {
            "structure": _structure_of(chain_id, self.structures),
            "fasta": self.fastas.get(chain_id),
            "template_mmcif_dir": self.template_mmcif_dir,
            "release_dates": self.release_dates,
            "obsolete_pdbs": self.obsolete_pdbs,
            "is_distillation": self.is_distillation,
        }
        return [ChainSource(chain_id, **(defaults | fields))]

    def copy_of(self, original: ChainSource, chain_id: str) -> ChainSource:
        """A chain with another's alignments and its own structure."""
        (source, *_) = [*self.chain(chain_id, original.chain_id), original]
        return dataclasses.replace(
            source,
            alignment_dir=original.alignment_dir,
            alignments=original.alignments,
            sequence="" if source.structure else original.sequence,
            fasta=source.fasta or (None if source.structure else original.fasta),
        )


def folders(user_dir: str | None, root: Path, names: Iterable[str]) -> list[Path]:
    """The user's folder, or the existing subfolders of those names, without datasets.

    Raises:
        InputError: the user's folder does not exist.
    """
    if user_dir is not None:
        if not Path(user_dir).is_dir():
            raise InputError("no such folder", path=user_dir)
        return [Path(user_dir)]
    existing = [root / name for name in names if (root / name).is_dir()]
    # `data/` may be structures, or a dataset of evofeed.
    return [folder for folder in existing if not first_dir(folder, _DATASET_DIRS)]


def first_dir(root: Path, names: Iterable[str]) -> Path | None:
    """The first of some folders that exists."""
    return next((root / name for name in names if (root / name).is_dir()), None)


def first_file(root: Path, names: Iterable[str]) -> str | None:
    """The first of some files that exists."""
    return next((str(root / name) for name in names if (root / name).is_file()), None)


def _fasta_by_stem(folders: Iterable[Path]) -> dict[str, str]:
    """FASTA file by stem; the first suffix is preferred, then the first folder."""
    by_stem: dict[str, str] = {}
    entries = [entry for folder in folders for entry in os.scandir(folder)]
    for ending in (suffix + packed for suffix in FASTA for packed in ("", *PACKED)):
        for entry in entries:
            if entry.name.lower().endswith(ending):
                by_stem.setdefault(entry.name[: -len(ending)], entry.path)
    return by_stem


def _structure_of(chain_id: str, structures: Mapping[str, str]) -> str | None:
    entry = chain_id.rpartition("_")[0]
    names = (entry, entry.lower(), chain_id)
    return next((structures[name] for name in names if name and name in structures), None)
