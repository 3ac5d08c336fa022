"""mmCIF text -> `Structure`: sequences from the polymer tables, atoms of the first model.

gemmi reads the syntax; what the items mean is decided here, as AF2 SI 1.2.1
and OpenFold do. `atom_sites` turns the atom table into arrays, `place_chain`
places them on the sequence.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from evofeed.errors import MmcifError
from evofeed.featurize.atom_labels import aligned_to
from evofeed.featurize.atom_loop import AtomLoop, cut_atom_loop, sites_of
from evofeed.featurize.atom_sites import AtomSites, place_chain
from evofeed.featurize.atom_table import read_atom_sites
from evofeed.featurize.bcif import read_bcif
from evofeed.featurize.confidence import with_confidence
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.polymers import (
    Polymer,
    other_polymers,
    polymers_of_atoms,
    protein_polymers,
    values_of,
)
from evofeed.featurize.structure import Chain, Structure

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
_NO_CONFIDENCE: Final = "a prediction without B factors or pLDDT: no residue is masked"
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}$")


def parse_mmcif(
    data: bytes,
    *,
    file_id: str,
    path: str = "",
    config: FeaturizeConfig | None = None,
    is_distillation: bool = False,
) -> Structure:
    """The protein chains of an mmCIF file of the entry `file_id`, as `parse_structure` says."""
    config = config or FeaturizeConfig()
    if b"\0" in data:
        raise MmcifError("holds NUL bytes: not an mmCIF text file", path=path or None)
    masked = is_distillation and config.mask_mmcif
    rest, loop = cut_atom_loop(data, config.caps, b_factor=masked)
    tables = _Tables(
        _block_without(rest, data, path), loop, lambda: _block(data, path) if loop else None
    )
    return _structure(tables, file_id, path, config, masked)


def parse_bcif(
    data: bytes,
    *,
    file_id: str,
    path: str = "",
    config: FeaturizeConfig | None = None,
    is_distillation: bool = False,
) -> Structure:
    """The protein chains of a BinaryCIF file of the entry `file_id`, as `parse_structure` says."""
    config = config or FeaturizeConfig()
    masked = is_distillation and config.mask_mmcif
    binary = read_bcif(data, path, config.caps)
    loop = binary.atom_loop(b_factor=masked)
    tables = _Tables(
        binary.block(atoms=loop is None), loop, lambda: binary.block(atoms=True) if loop else None
    )
    return _structure(tables, file_id, path, config, masked)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    """A file's tables.

    Attributes:
        block: all, or all but the atoms.
        loop: the atoms, if they are not in the block.
        whole: the block with the atoms; None if `block` has them.
    """

    block: Any
    loop: AtomLoop | None
    whole: Callable[[], Any]


def _structure(
    tables: _Tables, file_id: str, path: str, config: FeaturizeConfig, masked: bool
) -> Structure:
    block, loop = tables.block, tables.loop
    try:
        if not config.require_labels and not block.find_values("_struct_asym.id"):
            block, loop = tables.whole() or block, None  # atoms tell the chains of an entity
        if config.require_atom_items:
            _check_atom_items(block, loop)
        polymers = protein_polymers(block, path, config)
        release_date = _release_date(block)
        has_entry_id = bool(values_of(block, "_entry.id"))
        if config.require_entry_id and not release_date and not has_entry_id:
            raise MmcifError("neither revision history nor _entry.id", path=path or None)
        bare = config.sequence_from_atoms and not values_of(block, "_entity_poly_seq.mon_id")
        if not polymers and not bare:
            raise MmcifError(_no_protein(block), path=path or None)
        sites = sites_of(loop) if loop is not None else None
        if sites is None:
            block = block if loop is None else tables.whole()
            sites = read_atom_sites(block, path, config, b_factor=masked)
        if sites.chains_by_author:
            polymers = protein_polymers(block, path, config, by_strand=True)
        if sites.by_author and polymers:
            sites = aligned_to(sites, {n: (p.start, p.names) for n, p in polymers.items()})
        seen_only = not polymers and not bare
        if not polymers and (bare or sites.by_author):
            polymers = polymers_of_atoms(sites, config)
        if not polymers:
            raise MmcifError(_no_protein(block), path=path or None)
        if masked:
            sites = with_confidence(block, sites)
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

    threshold = config.confidence_threshold if masked else None
    notes = _notes(sites, masked, seen_only)

    def place(author: str) -> Chain:
        starts = {internal: polymers[internal].start for internal in parts[author]}
        polymer = polymers[parts[author][-1]]
        chain = place_chain(sites, author, starts, polymer.sequence, polymer.prefer, threshold)
        return dataclasses.replace(chain, notes=(*chain.notes, *notes))

    return Structure(
        file_id=file_id,
        method=",".join(value.lower() for value in values_of(block, "_exptl.method")),
        release_date=release_date,
        resolution=_resolution(block),
        sequences=letters,
        place=place,
        left_out=other_polymers(block, letters),
    )


def _notes(sites: AtomSites, masked: bool, seen_only: bool) -> list[str]:
    """What is odd about all chains of a file."""
    notes = [_NO_CONFIDENCE] if masked and sites.b_factor is None else []
    if sites.by_author:
        which = "chain and residue" if sites.chains_by_author else "residue"
        notes.append(f"{which} labels are missing: the author's ids count")
    if seen_only:
        notes.append("no chain id in _entity_poly: the sequence is what is seen")
    return notes


def _no_protein(block: Any) -> str:
    kinds = ", ".join(dict.fromkeys(values_of(block, "_entity_poly.type")))
    seen = f"its polymers are {kinds}" if kinds else "no residue of its atoms has a CA"
    return f"No protein chains found in this file. To be left out: {seen}"


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


def _release_date(block: Any) -> str:
    dates = values_of(block, "_pdbx_audit_revision_history.revision_date")
    return min((d for d in dates if _DATE.match(d)), default="")


def _resolution(block: Any) -> float:
    for tag in _RESOLUTIONS:
        for value in values_of(block, tag)[:1]:
            try:
                resolution = float(value)
            except ValueError:
                continue
            return resolution if 0 <= resolution < 1e6 else 0.0
    return 0.0


def _author_chains(
    polymers: Mapping[str, Polymer], sites: AtomSites
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
