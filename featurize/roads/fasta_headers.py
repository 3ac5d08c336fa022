"""Molecules as Boltz, Chai and AlphaFold 3 name them; only the proteins are featurised."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from evofeed.featurize.reading import FileRef, file_ref

_BOLTZ: Final = ("protein", "rna", "dna", "ccd", "smiles")
_CHAI: Final = ("protein", "rna", "dna", "ligand", "glycan")


class Entity(NamedTuple):
    """What a header says: a name, a kind of molecule, and the file of its alignment.

    `chain` tells a name that is only a chain's, as in Boltz: its file is the entry.
    """

    name: str
    kind: str
    msa: str = ""
    chain: bool = False


def entity_of(header: str) -> Entity | None:
    """An entity as Boltz (`A|protein|x.a3m`) or Chai (`protein|name=x`) write it; else None."""
    first, *rest = (part.strip() for part in header.split("|"))
    if rest and rest[0].lower() in _BOLTZ:
        msa = rest[1] if len(rest) > 1 else ""
        return Entity(first, rest[0].lower(), "" if msa == "empty" else msa, chain=True)
    if rest and first.lower() in _CHAI:
        return Entity(rest[0].removeprefix("name=").split(maxsplit=1)[0], first.lower())
    return None


def is_other(entity: Entity | None) -> bool:
    """Whether it says that it is no protein."""
    return entity is not None and entity.kind != "protein"


def no_protein(others: Iterable[Entity]) -> str:
    """A note on what is beside the proteins of an entry."""
    listed = ", ".join(f"{entity.name} ({entity.kind})" for entity in others)
    return f"beside what is no protein and left out: {listed}"


def msa_file(name: str, named_in: Path) -> FileRef | None:
    """An alignment named by a job's file, relative to it, to a folder above, or to this one.

    Boltz's examples name theirs from the folder where the command is run.
    """
    homes = [*named_in.absolute().parents, Path()]
    found = next((path for home in homes if (path := home / name).is_file()), None)
    if found is None:
        return None
    return (
        FileRef(f"{found.stem}.a3m", str(found), part="csv")
        if found.suffix == ".csv"
        else file_ref(found)
    )
