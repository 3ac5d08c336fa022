"""A structure file of any format -> `Structure`, chosen by its name."""

from __future__ import annotations

import re
from typing import Any, Final

from evofeed.base.errors import MmcifError
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.structures.structure import Structure

SUFFIXES: Final = (".cif", ".mmcif", ".pdb", ".ent")
"""Structure formats, in the order in which they are looked for."""
_WWPDB: Final = re.compile(r"pdb([0-9][a-z0-9]{3}|_[a-z0-9]{8})$", re.IGNORECASE)
"""The wwPDB's own names of legacy files: `pdb4hhb.ent`."""


def entry_of(name: str) -> str:
    """Entry of a structure file by its name without compression suffix: 4hhb of `pdb4hhb.ent`."""
    stem, _, suffix = name.rpartition(".")
    found = _WWPDB.match(stem) if suffix.lower() == "ent" else None
    return found[1] if found else stem


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
        name: file name without compression suffix; gives format and entry.
        is_distillation: B factors are confidences; residues below
            `confidence_threshold` lose their atoms.

    Raises:
        MmcifError: not that format, a table or item is missing or nonsense, no protein in it,
            or something that the configuration refuses as OpenFold does.
    """
    # Parsers are imported with their first file: numba takes half a second.
    stem, suffix = entry_of(name), name.rpartition(".")[2].lower()
    about: dict[str, Any] = {"path": path, "config": config, "is_distillation": is_distillation}
    if suffix in ("cif", "mmcif"):
        from evofeed.featurize.structures.mmcif import parse_mmcif

        return parse_mmcif(data, file_id=stem, **about)
    if suffix in ("pdb", "ent"):
        from evofeed.featurize.structures.pdb import parse_pdb

        return parse_pdb(data, file_id=stem, **about)
    raise MmcifError(
        f"{name!r} is no structure file: expected one of {', '.join(SUFFIXES)}", path=path
    )
