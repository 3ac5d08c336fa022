"""Which chains a folder holds, whatever layout it has."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from evofeed.errors import InputError
from evofeed.featurize.sources import ChainSource
from evofeed.featurize.structure_files import SUFFIXES

_PACKED: Final = ("", ".gz", ".zst")
_ALIGNMENT_DIRS: Final = ("alignments",)
_STRUCTURE_DIRS: Final = ("mmcif", "mmcifs", "pdb_mmcif/mmcif_files", "mmcif_files", "data", "pdb")
_TEMPLATE_DIRS: Final = ("template_mmcif", "template_mmcifs", "templates")
_FASTA_DIRS: Final = ("fasta", "fastas", "fasta_dir")


def discover(
    uri: str | os.PathLike[str],
    *,
    structure_dir: str | os.PathLike[str] | None = None,
    template_mmcif_dir: str | os.PathLike[str] | None = None,
    fasta_dir: str | os.PathLike[str] | None = None,
    is_distillation: bool = False,
) -> list[ChainSource]:
    """The chains of an input, ordered by chain id.

    Args:
        uri: a folder (or `file://` URI): a data set root with `alignments/` and
            structures beside it, or a folder of chain folders itself.
        structure_dir: where the structures are, if not beside the alignments.
        template_mmcif_dir: where the structures of template hits are.
        fasta_dir: where sequences of chains without structure are.
        is_distillation: the structures are predictions.

    Raises:
        InputError: no such folder, or nothing in it that looks like chains.
    """
    root = Path(os.fspath(uri).removeprefix("file://"))
    if not root.is_dir():
        raise InputError("no such folder", path=str(root))
    alignments = _first_dir(root, _ALIGNMENT_DIRS) or root
    beside = alignments.parent if alignments == root else root
    structures = _index(_folders(structure_dir, beside, _STRUCTURE_DIRS), SUFFIXES)
    fastas = _index(_folders(fasta_dir, beside, _FASTA_DIRS), (".fasta", ".fa", ".faa"))
    given = _folders(template_mmcif_dir, beside, _TEMPLATE_DIRS)
    templates = given or _folders(structure_dir, beside, _STRUCTURE_DIRS)
    sources = [
        ChainSource(
            entry.name,
            alignment_dir=entry.path,
            structure=_structure_of(entry.name, structures),
            fasta=fastas.get(entry.name),
            template_mmcif_dir=str(templates[0]) if templates else None,
            is_distillation=is_distillation,
        )
        for entry in os.scandir(alignments)
        if entry.is_dir()
    ]
    if not sources:
        raise InputError("no chain folder in it", path=str(alignments))
    return sorted(sources, key=lambda source: source.chain_id)


def _first_dir(root: Path, names: Iterable[str]) -> Path | None:
    return next((root / name for name in names if (root / name).is_dir()), None)


def _folders(given: str | os.PathLike[str] | None, root: Path, names: Iterable[str]) -> list[Path]:
    if given is not None:
        folder = Path(os.fspath(given).removeprefix("file://"))
        if not folder.is_dir():
            raise InputError("no such folder", path=str(folder))
        return [folder]
    return [root / name for name in names if (root / name).is_dir()]


def _index(folders: Iterable[Path], suffixes: Iterable[str]) -> dict[str, str]:
    """Stem -> path of the files with one of the suffixes, the first kind winning."""
    found: dict[str, tuple[int, str]] = {}
    kinds = [suffix + packed for suffix in suffixes for packed in _PACKED]
    for folder in folders:
        for entry in os.scandir(folder):
            for rank, kind in enumerate(kinds):
                if entry.name.endswith(kind):
                    stem = entry.name[: -len(kind)]
                    if stem not in found or rank < found[stem][0]:
                        found[stem] = (rank, entry.path)
                    break
    return {stem: path for stem, (_, path) in found.items()}


def _structure_of(chain_id: str, structures: dict[str, str]) -> str | None:
    entry = chain_id.rpartition("_")[0]
    for name in (entry, entry.lower(), chain_id):
        if name and name in structures:
            return structures[name]
    return None
