"""Recipes: the databases that a pipeline searches, its settings, and its row limits.

A recipe names databases by their roles, which are their names on the command line (`--db
uniref90=/data/uniref90.fasta`). Numbers are those of AlphaFold 2's `data/pipeline.py` and
`pipeline_multimer.py`, OpenFold's `AlignmentRunner`, AlphaFold 3's `data/pipeline.py`, and
ColabFold's `search.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from evofeed.featurize.search.config import Database, SearchConfig

_ALL: Final = 1_000_000


def _role(name: str, max_hits: int | None = None, **attributes: Any) -> Database:
    """A database of a recipe with its row limit; the user gives the path."""
    return Database(name, "", max_hits, **attributes)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Roles in the order of their searches, and their settings. Without roles it takes any
    database."""

    roles: tuple[Database, ...]
    config: SearchConfig

    def assign(self, name: str, databases: Sequence[Database]) -> list[Database]:
        """Databases in the recipe's order, with its row limits, joint ones merged; a database's
        own `max_hits` stays.

        Raises:
            ValueError: a database has no role.
        """
        if not self.roles:
            return list(databases)
        order = {role.name: role for role in self.roles}
        for database in databases:
            if database.name not in order and not database.is_template:
                raise ValueError(
                    f"the recipe {name} has no database {database.name!r}: call it by its role, "
                    f"one of {', '.join(order)} (--db {next(iter(order))}={database.path})"
                )
        assigned: list[Database] = []
        for role in self.roles:
            assigned += [_with_role(db, role) for db in databases if db.name == role.name]
        assigned += [db for db in databases if db.name not in order]
        return list(_merge_joint(assigned))


def _with_role(database: Database, role: Database) -> Database:
    return dataclasses.replace(
        database,
        max_hits=database.max_hits or role.max_hits,
        is_template=role.is_template or database.is_template,
        pairs=role.pairs,
        joint=role.joint,
        is_rna=role.is_rna,
    )


def _merge_joint(databases: Iterable[Database]) -> Iterable[Database]:
    groups: dict[str, list[Database]] = {}
    for database in databases:
        groups.setdefault(database.joint or database.name, []).append(database)
    for name, group in groups.items():
        first, *rest = group
        limits = [database.max_hits for database in group if database.max_hits]
        yield dataclasses.replace(
            first,
            name=name,
            more=tuple(database.path for database in rest),
            max_hits=min(limits, default=None),
        )


_BFD: Final = (_role("bfd", joint="bfd_uniref"), _role("uniref30", joint="bfd_uniref"))
_UNIREF90: Final = _role("uniref90", 10_000)
_UNIPROT: Final = _role("uniprot", 50_000, pairs=True)
_AF2: Final = (_UNIREF90, _role("mgnify", 501), *_BFD, _role("small_bfd"))
_OPENFOLD: Final = (_UNIREF90, _role("mgnify", 5_000), *_BFD)
_PDB70, _PDB_SEQRES = _role("pdb70", is_template=True), _role("pdb_seqres", is_template=True)
_RNA: Final = tuple(_role(name, 10_000, is_rna=True) for name in ("rfam", "rnacentral", "nt"))
_AF3: Final = (_UNIREF90, _role("mgnify", 5_000), _role("small_bfd", 5_000), _UNIPROT)
_AF3_PROFILE: Final = ("uniref90", "small_bfd", "mgnify")
_HMMER: Final = SearchConfig(max_hits=_ALL)

RECIPES: Final[dict[str, Recipe]] = {
    "default": Recipe((), SearchConfig()),
    "af2": Recipe((*_AF2, _PDB70), _HMMER),
    "af2-multimer": Recipe((*_AF2, _UNIPROT, _PDB_SEQRES), _HMMER),
    "openproteinset": Recipe((*_OPENFOLD, _UNIPROT, _PDB70, _PDB_SEQRES), _HMMER),
    "af3": Recipe(
        (*_AF3, _PDB_SEQRES, *_RNA), dataclasses.replace(_HMMER, template_profile=_AF3_PROFILE)
    ),
    "colabfold": Recipe((), SearchConfig.colabfold()),
}


def cook(
    name: str, databases: Sequence[Database], **changes: Any
) -> tuple[list[Database], SearchConfig]:
    """Databases and settings of a search by a recipe.

    Raises:
        ValueError: the recipe is unknown, or a database has no role in it.
    """
    if name not in RECIPES:
        raise ValueError(f"no recipe {name!r}: {', '.join(RECIPES)}")
    recipe = RECIPES[name]
    return recipe.assign(name, databases), dataclasses.replace(recipe.config, **changes)
