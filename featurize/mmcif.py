"""mmCIF text -> `Structure`: sequences from the polymer tables, atoms of the first model.

gemmi reads the syntax; what the items mean is decided here, as AF2 SI 1.2.1
and OpenFold do. `atom_sites` turns the atom table into arrays, `chain_atoms`
places them on the sequence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from evofeed.errors import MmcifError
from evofeed.featurize.atom_loop import AtomLoop, cut_atom_loop, sites_of
from evofeed.featurize.atom_sites import AtomSites, place_chain, read_atom_sites
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.residue_names import one_letter
from evofeed.featurize.structure import Chain, Structure
from evofeed.residues import ATOM_ORDER

_RESOLUTIONS: Final = (
    "_refine.ls_d_res_high",
    "_em_3d_reconstruction.resolution",
    "_reflns.d_resolution_high",
)
_BIOPYTHON_ITEMS: Final = (
    "id label_atom_id label_comp_id auth_asym_id Cartn_x Cartn_y Cartn_z label_alt_id "
    "pdbx_PDB_ins_code B_iso_or_equiv occupancy group_PDB"
).split()
"""What Biopython's structure builder reads, in its order."""
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}$")


def parse_mmcif(
    data: bytes,
    *,
    file_id: str,
    path: str = "",
    config: FeaturizeConfig | None = None,
) -> Structure:
    """The protein chains of an mmCIF file.

    Args:
        data: content of the file.
        file_id: what to call the entry.
        path: the file's name, for errors.
        config: strictness and caps.

    Raises:
        MmcifError: not mmCIF, a table or item is missing or nonsense, or no
            protein chain in it.
    """
    config = config or FeaturizeConfig()
    if b"\0" in data:
        raise MmcifError("holds NUL bytes: not an mmCIF text file", path=path or None)
    rest, loop = cut_atom_loop(data, config.caps)
    block = _block_without(rest, data, path)
    try:
        if config.require_atom_items:
            _check_atom_items(block, loop)
        polymers = _protein_chains(block, path, config)
        release_date = _release_date(block)
        has_entry_id = bool(_values(block, "_entry.id"))
        if config.require_entry_id and not release_date and not has_entry_id:
            raise MmcifError("neither revision history nor _entry.id", path=path or None)
        bare = config.sequence_from_atoms and not _values(block, "_entity_poly_seq.mon_id")
        if not polymers and not bare:
            raise MmcifError("No protein chains found in this file.", path=path or None)
        sites = sites_of(loop) if loop is not None else None
        if sites is None:
            block = block if rest is data else _block(data, path)
            sites = read_atom_sites(block, path, config.caps)
        polymers = polymers or _chains_of_atoms(sites, config)
        if not polymers:
            raise MmcifError("No protein chains found in this file.", path=path or None)
    except MmcifError as error:
        error.path = error.path or path or None
        raise
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise MmcifError(
            f"an item has no sensible value: {type(error).__name__}: {error}", path=path or None
        ) from None
    parts, unobserved = _author_chains(polymers, sites)
    if unobserved and config.require_observed_chains:
        raise MmcifError(f"no atoms of protein chain {unobserved[0]!r}", path=path or None)
    # Two polymers under one author id are one chain to AF2; the last gives the sequence.
    letters = {author: polymers[internals[-1]].sequence for author, internals in parts.items()}

    def place(author: str) -> Chain:
        starts = {internal: polymers[internal].start for internal in parts[author]}
        polymer = polymers[parts[author][-1]]
        return place_chain(sites, author, starts, polymer.sequence, polymer.prefer)

    return Structure(
        file_id=file_id,
        method=",".join(value.lower() for value in _values(block, "_exptl.method")),
        release_date=release_date,
        resolution=_resolution(block),
        sequences=letters,
        place=place,
    )


def _check_atom_items(block: Any, loop: AtomLoop | None) -> None:
    for item in _BIOPYTHON_ITEMS:
        here = item in loop.columns if loop else len(block.find_values(f"_atom_site.{item}"))
        if not here:
            raise MmcifError(f"_atom_site.{item} is missing")


def _block_without(rest: bytes, data: bytes, path: str) -> Any:
    """The block of the file without its atom table; errors name lines of the whole file."""
    try:
        return _block(rest, path)
    except MmcifError:
        return _block(data, path)


def _block(data: bytes, path: str) -> Any:
    from gemmi import cif

    if not data.strip():
        raise MmcifError("Empty file.", path=path or None)
    try:
        document = cif.read_string(data)
    except (ValueError, RuntimeError) as error:
        text = str(error)
        line = re.match(r"\w*:(\d+)", text)
        raise MmcifError(
            f"not mmCIF: {text}", path=path or None, line=int(line[1]) if line else None
        ) from None
    if len(document) == 0:
        raise MmcifError("no data block in it", path=path or None)
    return document[0]


def _values(block: Any, tag: str) -> list[str]:
    """All values of an item, unquoted; empty if it is not there."""
    from gemmi import cif

    return [cif.as_string(v) if v[:1] in "'\";" else v for v in block.find_values(tag)]


def _table(block: Any, category: str, items: tuple[str, ...], path: str) -> list[tuple[str, ...]]:
    columns = [_values(block, f"{category}.{item}") for item in items]
    for item, column in zip(items, columns, strict=True):
        if len(column) != len(columns[0]):
            raise MmcifError(
                f"{category}.{item} has {len(column)} values, {category}.{items[0]} has "
                f"{len(columns[0])}",
                path=path or None,
            )
    return list(zip(*columns, strict=True))


def _release_date(block: Any) -> str:
    dates = _values(block, "_pdbx_audit_revision_history.revision_date")
    return min((d for d in dates if _DATE.match(d)), default="")


def _resolution(block: Any) -> float:
    for tag in _RESOLUTIONS:
        for value in _values(block, tag)[:1]:
            try:
                resolution = float(value)
            except ValueError:
                continue
            return resolution if 0 <= resolution < 1e6 else 0.0
    return 0.0


@dataclass(frozen=True, slots=True)
class _Polymer:
    """One polymer entity: its letters, its first number, and residues that have a rival."""

    sequence: str
    start: int
    prefer: dict[int, str]


def _protein_chains(block: Any, path: str, config: FeaturizeConfig) -> dict[str, _Polymer]:
    """Polymer of every internal chain id, protein chains only."""
    entities: dict[str, list[tuple[int, str]]] = {}
    columns = ("entity_id", "num", "mon_id")
    for entity, number, name in _table(block, "_entity_poly_seq", columns, path):
        entities.setdefault(entity, []).append((int(number), name))
    types = {row[0]: row[1] for row in _table(block, "_chem_comp", ("id", "type"), path)}
    members: dict[str, list[str]] = {}
    for chain, entity in _table(block, "_struct_asym", ("id", "entity_id"), path):
        members.setdefault(entity, []).append(chain)
    chains = {}
    for entity, monomers in entities.items():
        if len(monomers) > config.caps.max_columns:
            raise MmcifError(
                f"entity {entity} has {len(monomers)} residues, more than the cap of "
                f"{config.caps.max_columns}; raise InputCaps.max_columns if meant",
                path=path or None,
            )
        # DNA and RNA have no peptide-like component.
        if any(_is_peptide(name, types, config) for name in dict.fromkeys(m[1] for m in monomers)):
            polymer = _polymer(monomers, config.collapse_heterogeneity)
            chains.update(dict.fromkeys(members.get(entity, []), polymer))
    return chains


def _is_peptide(name: str, types: Mapping[str, str], config: FeaturizeConfig) -> bool:
    if not config.strict_component_types:
        return "peptide" in types.get(name, "").lower()
    if name not in types:
        raise MmcifError(f"residue {name!r} is not in _chem_comp")
    return "peptide" in types[name]


def _polymer(monomers: list[tuple[int, str]], collapse: bool) -> _Polymer:
    start = min(number for number, _ in monomers)
    if not collapse:
        return _Polymer("".join(one_letter(name) for _, name in monomers), start, {})
    first: dict[int, str] = {}
    rivals: dict[int, str] = {}
    for number, name in monomers:
        if first.setdefault(number, name) != name:
            rivals[number - start] = first[number]
    if len(first) != max(first) - start + 1 or list(first) != sorted(first):
        raise MmcifError("_entity_poly_seq.num does not count up by one")
    return _Polymer("".join(map(one_letter, first.values())), start, rivals)


def _chains_of_atoms(sites: AtomSites, config: FeaturizeConfig) -> dict[str, _Polymer]:
    """Polymers of a file that has atoms only: residues with a CA, X between them."""
    alpha = sites.atom37 == ATOM_ORDER["CA"]
    chains = {}
    for code, internal in enumerate(sites.internals):
        rows = np.flatnonzero(alpha & (sites.internal == code))
        if not len(rows):
            continue
        numbers = sites.number[rows]
        start, length = int(numbers.min()), int(numbers.max() - numbers.min()) + 1
        if length > config.caps.max_columns:
            raise MmcifError(f"residue numbers span {length}, cap {config.caps.max_columns}")
        letters = ["X"] * length
        for number, component in zip(numbers.tolist(), sites.component[rows], strict=True):
            letters[number - start] = one_letter(sites.components[component])
        chains[internal] = _Polymer("".join(letters), start, {})
    return chains


def _author_chains(
    polymers: Mapping[str, _Polymer], sites: AtomSites
) -> tuple[dict[str, list[str]], list[str]]:
    """Internal chains under each author's id, and those nobody has seen."""
    parts: dict[str, list[str]] = {}
    unobserved = []
    for internal in polymers:
        if internal in sites.author_of:
            parts.setdefault(sites.author_of[internal], []).append(internal)
        else:
            unobserved.append(internal)
    return parts, unobserved
