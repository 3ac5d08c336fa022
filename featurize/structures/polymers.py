"""The polymers of an mmCIF file by its polymer tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from evofeed.base.errors import MmcifError
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.structures.cif import UNSET, pairs_of, values_of
from evofeed.featurize.structures.residue_names import is_amino_acid, one_letter, standard_letter


@dataclass(frozen=True, slots=True)
class Polymer:
    """One polymer entity.

    Attributes:
        start: number of the first residue.
        prefer: name to use, by position with several residue names.
        names: residue names, one per position.
    """

    sequence: str
    start: int
    prefer: dict[int, str]
    names: tuple[str, ...] = ()


def _table(block: Any, category: str, items: tuple[str, ...], path: str) -> list[tuple[str, ...]]:
    """Rows of a table; raises if its columns differ in length."""
    columns = [values_of(block, f"{category}.{item}") for item in items]
    size = len(columns[0])
    for item, column in zip(items, columns, strict=True):
        if len(column) != size:
            message = f"{category}.{item} has {len(column)} values, {items[0]} has {size}"
            raise MmcifError(message, path=path)
    return list(zip(*columns, strict=True))


def protein_polymers(
    block: Any, path: str, config: FeaturizeConfig, *, by_strand: bool = False
) -> dict[str, Polymer]:
    """The protein polymers by `label_asym_id`; `by_strand`: by author's chain id."""
    entities: dict[str, list[tuple[int, str]]] = {}
    columns = ("entity_id", "num", "mon_id")
    for entity, number, name in _table(block, "_entity_poly_seq", columns, path):
        entities.setdefault(entity, []).append((int(number), name))
    is_protein = _protein_test(block, path, config)
    members = _strands(block) if by_strand else _members(block, path, config)
    chains = {}
    for entity, monomers in entities.items():
        size = len(monomers)
        excess = config.caps.excess("max_columns", size, f"entity {entity} has {size} residues")
        if excess:
            raise MmcifError(excess, path=path)
        # DNA and RNA have no peptide-like component.
        names = dict.fromkeys(name for _, name in monomers)
        if any(is_protein(name, entity) for name in names):
            polymer = _polymer(monomers, config)
            chains.update(dict.fromkeys(members.get(entity, []), polymer))
    return chains


def _protein_test(block: Any, path: str, config: FeaturizeConfig) -> Callable[[str, str], bool]:
    """A function of residue name and entity: True if the residue makes the entity a protein."""
    if config.strict_component_types:
        strict = {row[0]: row[1] for row in _table(block, "_chem_comp", ("id", "type"), path)}

        def by_component(name: str, _: str) -> bool:
            if name not in strict:
                raise MmcifError(f"residue {name!r} is not in _chem_comp")
            return "peptide" in strict[name]

        return by_component
    types, entities = (
        {name: kind.lower() for name, kind in pairs_of(block, *items) if kind not in UNSET}
        for items in (
            ("_chem_comp.id", "_chem_comp.type"),
            ("_entity_poly.entity_id", "_entity_poly.type"),
        )
    )

    def by_any_table(name: str, entity: str) -> bool:
        if name in types:
            return "peptide" in types[name]
        if entity in entities:
            return "polypeptide" in entities[entity]
        return is_amino_acid(name)

    return by_any_table


def other_polymers(block: Any, chains: Collection[str]) -> tuple[str, ...]:
    """A line for each kind of polymer, with its author's chain ids that are not in `chains`."""
    by_kind: dict[str, list[str]] = {}
    kinds, strands = (values_of(block, f"_entity_poly.{x}") for x in ("type", "pdbx_strand_id"))
    for number, kind in enumerate(kinds):
        texts = strands[number].split(",") if len(strands) == len(kinds) else []
        names = [text.strip() for text in texts if text.strip() not in UNSET]
        if names or "nucleotide" in kind:
            by_kind.setdefault(kind, []).extend(name for name in names if name not in chains)
    return tuple(
        f"chain {', '.join(names) or '?'} ({kind}{', without atoms' if 'peptide' in kind else ''})"
        for kind, names in by_kind.items()
        if names or "nucleotide" in kind
    )


def _members(block: Any, path: str, config: FeaturizeConfig) -> dict[str, list[str]]:
    """`label_asym_id`s of each entity."""
    rows: Sequence[tuple[str, ...]]
    if config.require_labels or block.find_values("_struct_asym.entity_id"):
        rows = _table(block, "_struct_asym", ("id", "entity_id"), path)
    else:  # missing, or without entities as cctbx writes it: read the atom table
        rows = pairs_of(block, "_atom_site.label_asym_id", "_atom_site.label_entity_id")
    members: dict[str, list[str]] = {}
    for chain, entity in dict.fromkeys(rows):
        members.setdefault(entity, []).append(chain)
    return members


def _strands(block: Any) -> dict[str, list[str]]:
    """Author's chain ids of each entity."""
    rows = pairs_of(block, "_entity_poly.entity_id", "_entity_poly.pdbx_strand_id")
    return {entity: [chain.strip() for chain in text.split(",")] for entity, text in rows}


def _polymer(monomers: list[tuple[int, str]], config: FeaturizeConfig) -> Polymer:
    start = min(number for number, _ in monomers)
    letter = standard_letter if config.whole_chain else one_letter
    if not config.collapse_heterogeneity:
        return Polymer("".join(letter(name) for _, name in monomers), start, {})
    first_names: dict[int, str] = {}
    prefer: dict[int, str] = {}
    for number, name in monomers:
        if first_names.setdefault(number, name) != name:
            prefer[number - start] = first_names[number]
    numbers = list(first_names)
    if len(numbers) != max(numbers) - start + 1 or numbers != sorted(numbers):
        raise MmcifError("_entity_poly_seq.num does not count up by one")
    names = tuple(first_names.values())
    return Polymer("".join(map(letter, names)), start, prefer, names)
