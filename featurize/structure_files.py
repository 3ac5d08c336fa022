"""A structure file of any format -> `Structure`, chosen by its name."""

from __future__ import annotations

from typing import Final

from evofeed.errors import MmcifError
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.mmcif import parse_mmcif
from evofeed.featurize.pdb import parse_pdb
from evofeed.featurize.proteinnet import parse_proteinnet
from evofeed.featurize.structure import Structure

SUFFIXES: Final = (".cif", ".mmcif", ".core", ".pdb", ".ent")
"""Structure formats, in the order in which they are looked for."""


def parse_structure(
    data: bytes,
    name: str,
    *,
    path: str = "",
    config: FeaturizeConfig | None = None,
    is_distillation: bool = False,
) -> Structure:
    """The chains of a structure file.

    Args:
        data: content, decompressed.
        name: file name without compression suffix; tells format and entry.
        path: for errors.
        config: strictness and caps.
        is_distillation: B factors are confidences; residues below
            `confidence_threshold` lose their atoms.

    Raises:
        MmcifError: not that format, or nothing of use in it.
    """
    stem, _, suffix = name.rpartition(".")
    if suffix in ("cif", "mmcif"):
        return parse_mmcif(
            data, file_id=stem, path=path, config=config, is_distillation=is_distillation
        )
    if suffix in ("pdb", "ent"):
        return parse_pdb(
            data, file_id=stem, path=path, config=config, is_distillation=is_distillation
        )
    if suffix == "core":
        return parse_proteinnet(data, file_id=stem, path=path, config=config)
    raise MmcifError(
        f"{name!r} is no structure file: expected one of {', '.join(SUFFIXES)}", path=path or None
    )
