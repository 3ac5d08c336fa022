"""Legacy PDB text -> `Structure`.

By default a chain is its amino acids: those of SEQRES where the file has it, with the
residues seen placed on them, else those seen. Waters, ligands and nucleotides are left out
and counted. What OpenFold makes of such a file is in `pdb_reference`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from evofeed.errors import MmcifError
from evofeed.featurize.atom_sites import AtomSites, place_chain
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.pdb_atoms import PdbAtoms, read_pdb_atoms
from evofeed.featurize.pdb_header import PdbHeader, read_pdb_header
from evofeed.featurize.pdb_reference import count_models, parse_pdb_as_openfold, refuse_chain_id
from evofeed.featurize.residue_names import is_amino_acid, is_nucleotide, is_water, model_letter
from evofeed.featurize.seqres import Residue, fits, place_on_sequence
from evofeed.featurize.structure import Chain, Structure
from evofeed.residues import ATOM_ORDER
from evofeed.shapes import Bool, Int

_BLANK: Final = 32
_BACKBONE: Final = ("N", "CA", "C")
_FREE_IDS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_NAMES: Final = 6
"""Residue names that a note lists."""


def parse_pdb(
    data: bytes,
    *,
    file_id: str,
    path: str = "",
    config: FeaturizeConfig | None = None,
    is_distillation: bool = False,
) -> Structure:
    """The protein chains of a legacy PDB file's first model, as `parse_structure` says."""
    config = config or FeaturizeConfig()
    if b"\0" in data:
        raise MmcifError("holds NUL bytes: not a PDB text file", path=path or None)
    if config.all_pdb_residues:
        return parse_pdb_as_openfold(
            data, file_id=file_id, path=path, config=config, is_distillation=is_distillation
        )
    atoms = read_pdb_atoms(data, path, config.caps)
    header = read_pdb_header(data)
    kinds = _Kinds.of(atoms, header)
    ids = _chain_ids(atoms, kinds)
    if config.strict_pdb:
        _refuse(atoms, ids, count_models(data), path)
    try:
        parts = [
            _residues_of(name, np.flatnonzero(ids == written), atoms, header, kinds, config)
            for name, written in _usable_ids(dict.fromkeys(ids.tolist())).items()
        ]
    except MmcifError as error:
        error.path = path or None
        raise
    proteins = {part.name: part for part in parts if part.sequence}
    others = [f"{part.name} ({part.left_out})" for part in parts if not part.sequence]
    if not proteins:
        seen = ", ".join(others)
        raise MmcifError(f"no protein in it, only chain {seen}", path=path or None)
    notes = (f"chain {', '.join(others)}: no proteins",) if others else ()
    sites = _sites(list(proteins.values()), atoms)
    threshold = config.confidence_threshold if is_distillation else None

    def place(name: str) -> Chain:
        part = proteins[name]
        chain = place_chain(sites, name, {name: 0}, part.sequence, part.prefer, threshold)
        return dataclasses.replace(chain, notes=(*chain.notes, *part.notes, *notes))

    return Structure(
        file_id=file_id,
        method=header.method,
        release_date=header.release_date,
        is_deposition=header.is_deposition,
        resolution=header.resolution,
        sequences={name: part.sequence for name, part in proteins.items()},
        place=place,
        kind="pdb",
        left_out=tuple(f"chain {other}" for other in others),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Kinds:
    """What the residue and atom names of a file are; by code."""

    amino: Bool[np.ndarray, " names"]
    water: Bool[np.ndarray, " names"]
    nucleotide: Bool[np.ndarray, " names"]
    atom37: Int[np.ndarray, " atoms"]

    @classmethod
    def of(cls, atoms: PdbAtoms, header: PdbHeader) -> _Kinds:
        names = atoms.residues
        return cls(
            np.array([is_amino_acid(name) or name in header.modified for name in names], bool),
            np.array([is_water(name) for name in names], bool),
            np.array([is_nucleotide(name) for name in names], bool),
            np.array([ATOM_ORDER.get(name, -1) for name in atoms.atoms], np.int32),
        )


def _chain_ids(atoms: PdbAtoms, kinds: _Kinds) -> Int[np.ndarray, " A"]:
    """Chain id of each record, one character or two.

    Column 21 is the first of two where the file has more chains than characters, and the
    fourth of a residue's name in simulations (`TIP3`): only amino acids tell which.
    """
    second = atoms.chain & 0xFF
    both = np.unique(atoms.chain[kinds.amino[atoms.residue] & (atoms.chain >> 8 != _BLANK)])
    return np.where(np.isin(atoms.chain, both), atoms.chain, second | _BLANK << 8)


def _usable_ids(written: Iterable[int]) -> dict[str, int]:
    """Chain ids as text; a blank one becomes the first free letter."""
    texts = {(chr(code >> 8) + chr(code & 0xFF)).strip(): code for code in written}
    free = next((c for c in _FREE_IDS if c not in texts), "")
    return {text or free: code for text, code in texts.items()}


def _refuse(atoms: PdbAtoms, ids: Any, models: int, path: str) -> None:
    if models > 1:
        raise MmcifError(f"{models} models, OpenFold takes one", path=path or None)
    odd = np.flatnonzero(atoms.insertion != _BLANK)
    if len(odd):
        number = atoms.number[odd[0]]
        raise MmcifError(f"insertion code at residue {number}, OpenFold takes none", path=path)
    for code in dict.fromkeys(ids.tolist()):
        refuse_chain_id((chr(code >> 8) + chr(code & 0xFF)).lstrip(), path)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The residues of one chain id.

    Attributes:
        name: its id.
        sequence: letters; '' if it is no protein.
        rows: records of residues that have a position.
        index: their positions.
        prefer: name of the residue to take where a position has several.
        left_out: residues that are none of a protein, by name.
        absent: atoms without coordinates.
        notes: what was odd or left out, in words.
    """

    name: str
    sequence: str
    rows: Int[np.ndarray, " A"]
    index: Int[np.ndarray, " A"]
    prefer: Mapping[int, str]
    left_out: str
    absent: int
    notes: tuple[str, ...]


def _residues_of(
    name: str,
    rows: Int[np.ndarray, " A"],
    atoms: PdbAtoms,
    header: PdbHeader,
    kinds: _Kinds,
    config: FeaturizeConfig,
) -> _Part:
    written = chr(atoms.chain[rows[0]] & 0xFF).strip() and name
    names = header.seqres.get(written, [])
    if not any(is_amino_acid(n) or n in header.modified for n in names):
        names = []  # not a protein's, or none at all
    ends = atoms.ters[np.isin(atoms.ters - 1, rows)]
    member = _members(rows, atoms, kinds, set(names), int(ends[-1]) if len(ends) else None)
    left_out = _listed(rows[~member], atoms)
    rows = rows[member]
    notes = [f"{left_out}: no residues of the chain"] if left_out else []
    if written != name:
        notes.append(f"the file gives no chain id, {name!r} is the first free one")
    unknown = np.isnan(atoms.xyz[rows]).any(-1)
    absent = int(unknown.sum())
    residue, first = _numbered(rows, atoms)
    index = None
    if names and len(rows):
        index = _on_seqres(first, atoms, names, header.unseen.get(written, []), notes)
    if index is None:
        known = np.bincount(residue, (kinds.atom37[atoms.atom[rows]] >= 0) & ~unknown) > 0
        index = np.where(known, np.cumsum(known) - 1, -1)
        names = [atoms.residues[code] for code in atoms.residue[first[known]]]
        _note_gaps(first[known], ends, atoms, notes)
    if len(names) > config.caps.max_columns:
        raise MmcifError(
            f"chain {name} has {len(names)} residues, more than the cap of "
            f"{config.caps.max_columns}; raise InputCaps.max_columns if meant"
        )
    where = index[residue]
    several = _several_names(rows, where, atoms, names)
    kept = (where >= 0) & ~unknown
    rows, where = rows[kept], where[kept]
    twice = len(rows) - len(np.unique(_atom_keys(rows, where, atoms)))
    if twice:
        notes.append(f"{twice} atoms there twice")
    sequence = "".join(map(model_letter, names)) if len(rows) else ""
    return _Part(name, sequence, rows, where, several, left_out or "no atom", absent, tuple(notes))


def _members(
    rows: Int[np.ndarray, " A"], atoms: PdbAtoms, kinds: _Kinds, seqres: set[str], ter: int | None
) -> Bool[np.ndarray, " A"]:
    """Which records are of the chain's residues.

    Amino acids, what SEQRES names, and unknown residues with a backbone between them; never
    water, and no HETATM after the chain's TER, where ligands stand.
    """
    code = atoms.residue[rows]
    named = np.array([name in seqres for name in atoms.residues], bool)
    known = kinds.amino | named
    member = known[code]
    strange = ~(known | kinds.water | kinds.nucleotide)[code]
    if strange.any():
        last = rows[kinds.amino[code]].max(initial=-1)  # beyond it are ligands
        member |= strange & (rows < last) & _has_backbone(rows, atoms, strange)
    member &= ~kinds.water[code]
    if ter is not None:
        member &= ~(atoms.hetero[rows] & (rows >= ter))
    return np.asarray(member)


def _has_backbone(
    rows: Int[np.ndarray, " A"], atoms: PdbAtoms, strange: Bool[np.ndarray, " A"]
) -> Bool[np.ndarray, " A"]:
    """Records of residues that have N, CA and C."""
    residue = np.full(len(rows), -1, np.int64)
    residue[strange], first = _numbered(rows[strange], atoms)
    whole = np.ones(len(first) + 1, bool)
    whole[-1] = False
    for name in _BACKBONE:
        code = atoms.atoms.index(name) if name in atoms.atoms else -1
        here = np.unique(residue[strange & (atoms.atom[rows] == code)])
        whole[:-1] &= np.isin(np.arange(len(first)), here)
    return np.asarray(whole[residue])


def _numbered(
    rows: Int[np.ndarray, " A"], atoms: PdbAtoms
) -> tuple[Int[np.ndarray, " A"], Int[np.ndarray, " R"]]:
    """Residue of each record by number and insertion code, and the first record of each."""
    keys = atoms.number[rows].astype(np.int64) * 256 + atoms.insertion[rows]
    _, first, residue = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[residue], rows[first[order]]


def _listed(rows: Int[np.ndarray, " A"], atoms: PdbAtoms) -> str:
    """Residues by name and how often, the most frequent first."""
    keys = np.stack([atoms.number[rows], atoms.insertion[rows], atoms.residue[rows]], -1)
    names = np.unique(keys, axis=0)[:, 2].tolist() if len(rows) else []
    counts = Counter(atoms.residues[code] for code in names).most_common()
    texts = [f"{count} {name}" for name, count in counts[:_NAMES]]
    rest = sum(count for _, count in counts[_NAMES:])
    return ", ".join([*texts, f"{rest} others"] if rest else texts)


def _on_seqres(
    first: Int[np.ndarray, " R"],
    atoms: PdbAtoms,
    names: list[str],
    unseen: list[Residue],
    notes: list[str],
) -> Int[np.ndarray, " R"] | None:
    """Position of each residue seen on SEQRES; None if they do not belong together."""
    seen = [atoms.residues[code] for code in atoms.residue[first]]
    numbers = zip(atoms.number[first].tolist(), atoms.insertion[first].tolist(), strict=True)
    residues = [(n, chr(code), name) for (n, code), name in zip(numbers, seen, strict=True)]
    index = place_on_sequence(residues, names, unseen)
    if index is None:
        notes.append(f"SEQRES has {len(names)} residues, too many to align {len(seen)} seen")
        return None
    placed = np.flatnonzero(index >= 0)
    other = sum(seen[i] != names[index[i]] for i in placed)
    if not fits(index, seen, names):
        notes.append(
            f"SEQRES has other residues than the {len(seen)} seen: the sequence is what is seen"
        )
        return None
    if other:
        notes.append(f"{other} residues are others than SEQRES says")
    if len(placed) < len(seen):
        notes.append(f"{len(seen) - len(placed)} residues are not in SEQRES")
    return index


def _note_gaps(
    first: Int[np.ndarray, " R"], ends: Int[np.ndarray, " T"], atoms: PdbAtoms, notes: list[str]
) -> None:
    gaps = int((np.diff(atoms.number[first]) > 1).sum())
    if gaps:
        notes.append(f"no SEQRES, and {gaps} gaps in the numbers: residues there are unknown")
    breaks = int((ends <= first[-1]).sum()) if len(first) else 0
    if breaks:
        notes.append(f"{breaks} TER records inside one chain id: it may be several chains")


def _several_names(
    rows: Int[np.ndarray, " A"], where: Int[np.ndarray, " A"], atoms: PdbAtoms, names: list[str]
) -> dict[int, str]:
    """Of positions with atoms of several residue names: SEQRES's, else the first one's."""
    code = atoms.residue[rows]
    prefer = {}
    lowest = np.full(len(names), np.iinfo(np.int32).max)
    highest = np.full(len(names), -1)
    inside = where >= 0
    np.minimum.at(lowest, where[inside], code[inside])
    np.maximum.at(highest, where[inside], code[inside])
    for position in np.flatnonzero(highest > lowest).tolist():
        here = [atoms.residues[c] for c in code[where == position]]
        prefer[position] = names[position] if names[position] in here else here[0]
    return prefer


def _atom_keys(
    rows: Int[np.ndarray, " A"], where: Int[np.ndarray, " A"], atoms: PdbAtoms
) -> Int[np.ndarray, " A"]:
    """A number for each atom of a residue and location: position, residue, atom, altloc."""
    keys = where.astype(np.int64) * len(atoms.residues) + atoms.residue[rows]
    return np.asarray((keys * len(atoms.atoms) + atoms.atom[rows]) * 256 + atoms.altloc[rows])


def _sites(parts: list[_Part], atoms: PdbAtoms) -> AtomSites:
    rows = np.concatenate([part.rows for part in parts])
    chain = np.repeat(np.arange(len(parts)), [len(part.rows) for part in parts]).astype(np.int32)
    names = [part.name for part in parts]
    atom37 = np.array([ATOM_ORDER.get(name, -1) for name in atoms.atoms], np.int32)[
        atoms.atom[rows]
    ]
    if "MSE" in atoms.residues:  # the selenium takes the sulphur's place
        selenium = np.array([name.upper() == "SE" for name in atoms.atoms])[atoms.atom[rows]]
        mse = atoms.residue[rows] == atoms.residues.index("MSE")
        atom37[selenium & mse] = ATOM_ORDER["SD"]
    codes = np.unique(atoms.insertion[atoms.insertion != _BLANK])
    altloc = atoms.altloc[rows]
    occupancy = atoms.occupancy[rows]
    b_factor = atoms.b_factor[rows]
    return AtomSites(
        internal=chain,
        author=chain,
        component=atoms.residue[rows],
        number=np.concatenate([part.index for part in parts]).astype(np.int64),
        author_number=atoms.number[rows].astype(np.int64),
        insertion=np.where(
            atoms.insertion[rows] == _BLANK, 0, np.searchsorted(codes, atoms.insertion[rows]) + 1
        ).astype(np.int32),
        hetero=atoms.hetero[rows],
        atom37=atom37,
        altloc=np.where(altloc == _BLANK, 0, altloc).astype(np.int32),
        occupancy=np.where(np.isnan(occupancy), 1.0, occupancy),
        positions=atoms.xyz[rows].astype(np.float32),
        internals=names,
        authors=names,
        components=atoms.residues,
        insertions=["", *map(chr, codes.tolist())],
        author_of=dict(zip(names, names, strict=True)),
        b_factor=np.where(np.isnan(b_factor), 0.0, b_factor),
        absent={part.name: part.absent for part in parts if part.absent},
    )
