"""The recorded all-atom packs decoded, and a project's structure as an `EntryView`."""

from __future__ import annotations

import functools
import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tests.conftest import golden_folder, golden_json

from evofeed.loader.packed import fill_slot, pack_sample
from evofeed.loader.unpack import unpack_sample
from evofeed.loader.views.config import OpenFold3Config
from evofeed.loader.views.entry_view import OTHER_POLYMER, ChainType, EntryView, ProtenixView
from evofeed.loader.views.laid import Laid, pad
from evofeed.loader.views.openfold3.features import fill_templates
from evofeed.loader.views.openfold3.templates import lay_out_templates
from evofeed.protein.molecules import ELEMENTS, numbered
from evofeed.protein.ruleset_section import copies_of

OPENFOLD3_NAMES = (
    "ALA ARG ASN ASP CYS GLN GLU GLY HIS ILE LEU LYS MET PHE PRO SER THR TRP TYR VAL UNK "
    "A G C U N DA DG DC DT DN"
).split()


class Recording(NamedTuple):
    """One file of a pack: the metadata of its schema, and the arrays."""

    meta: dict[str, Any]
    arrays: dict[str, Any]


def packs() -> list[Path]:
    """Folders laid out as `golden/allatom`; `EVOFEED_ALLATOM` may name others, by colons."""
    folders = [Path(path) for path in os.environ.get("EVOFEED_ALLATOM", "").split(":") if path]
    return folders or [golden_folder("allatom")]


def recordings(pattern: str) -> list[Path]:
    """Files of all packs, as `boltz/samples/*.npz`."""
    return [path for pack in packs() for path in sorted(pack.glob(pattern))]


def some_recordings(pattern: str, limit: int) -> list[Path]:
    """The smallest files of all packs."""
    return sorted(recordings(pattern), key=lambda path: path.stat().st_size)[:limit]


def read(path: Path, prefix: str = "") -> Recording:
    """A decoded file; with a prefix, only the arrays below it, by names without the prefix."""
    with np.load(path) as members:
        schema = json.loads(members["__schema__"].tobytes())
        arrays = {
            name.removeprefix(prefix): _decode(members, name, encoding)
            for name, encoding in schema["arrays"].items()
            if name.startswith(prefix) and encoding["enc"] != "struct"
        }
    return Recording({k: v for k, v in schema.items() if k != "arrays"}, arrays)


def _decode(members: Any, name: str, encoding: dict[str, Any]) -> Any:
    if encoding["enc"] == "json":
        return encoding["value"]
    value = members[name]
    if encoding["enc"] == "str":
        return value
    shape, dtype = tuple(encoding["shape"]), encoding["dtype"].removeprefix("torch.")
    if encoding["enc"] == "const":
        return np.full(shape, value[0], dtype)
    if encoding["enc"] == "bits":
        return np.unpackbits(value)[: int(np.prod(shape))].reshape(shape).astype(dtype)
    if encoding["enc"] == "onehot":
        index, dense = value.ravel().astype(np.int64), np.zeros(shape, dtype)
        rows = dense.reshape(-1, shape[-1])  # most of its pages are never written
        rows[(hot := np.flatnonzero(index >= 0)), index[hot]] = 1
        rows[index == -2] = 1
        return dense
    return value.astype(dtype, copy=False).reshape(shape)


def recorded_calls(sample: Recording) -> list[tuple[dict[str, Any], Any]]:
    """Draws of a training sample, site and value, in call order."""
    calls: list[tuple[int, dict[str, Any], Any]] = []
    for site in sample.meta["draws"]:
        sites = [site] * len(site["calls"])
        constants = [site.get("value")] * len(sites)
        values = sample.arrays[f"draw.{site['array']}"] if "array" in site else constants
        calls += zip(site["calls"], sites, values, strict=True)
    return [(site, value) for _, site, value in sorted(calls, key=lambda call: call[0])]


class SampleInputs(NamedTuple):
    """The arguments of `plan_sample`."""

    view: Any
    alignments: list[Any]
    point: Sequence[int]
    draws: Any
    config: Any


def template_features(
    packed: dict[str, np.ndarray], config: OpenFold3Config
) -> dict[str, torch.Tensor]:
    """OpenFold3's features of drawn templates, and of the tokens' `asym_id`."""
    drawn = {name: value for name, value in packed.items() if name != "asym_id"}
    laid = lay_out_templates(drawn, config)
    laid["asym_id"] = pad(packed["asym_id"], config.token_budget)
    tensors = slotted(laid)
    fill_templates(tensors)
    return {name: value for name, value in tensors.items() if name.startswith("template_")}


def slotted(laid: Laid, device: str = "cpu") -> dict[str, torch.Tensor]:
    """A plan's features as tensors of the bytes of a slot."""
    where, values = pack_sample(laid)
    slot = np.zeros(where.nbytes, np.uint8)
    fill_slot(where, values, memoryview(slot))
    return unpack_sample(where, torch.from_numpy(slot).to(device))[0]


def assert_recorded(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], close: Mapping[str, float], rtol: float
) -> None:
    """Every tensor has the recorded shape, dtype and values; floats within `close`, else 1e-6."""
    wrong = []
    for name, value in ours.items():
        recorded = theirs[name]
        assert value.shape == recorded.shape, name
        assert str(value.dtype).removeprefix("torch.") == str(recorded.dtype), name
        if np.array_equal(value, recorded):  # most are, and `allclose` takes ten times as long
            continue
        atol = close.get(name, 1e-6)
        if recorded.dtype.kind != "f" or not np.allclose(value, recorded, rtol=rtol, atol=atol):
            wrong.append(name)
    assert not wrong


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> set[str]:
    """Names of tensors that differ."""
    return {
        name
        for name, value in first.items()
        if isinstance(value, torch.Tensor)
        and (value.shape != second[name].shape or not torch.equal(value, second[name]))
    }


@functools.lru_cache(maxsize=4)  # samples of an entry follow each other
def entry_view(project: str, pack: Path, entry: str) -> EntryView:
    """The prepared structure of an entry as a project recorded it."""
    return _VIEWS[project](pack, entry)


@functools.lru_cache(maxsize=4)
def openfold3_cache(pack: Path) -> dict[str, Any]:
    """Metadata, training cache and representatives of OpenFold3."""
    return golden_json(pack / "openfold3" / "cache.json")


@functools.lru_cache(maxsize=4)
def _openfold3_molecules(pack: Path) -> dict[str, np.ndarray]:
    with np.load(pack / "components" / "openfold3_reference_mols.npz") as members:
        return dict(members)


def _offsets(starts: np.ndarray, total: int) -> np.ndarray:
    return np.append(starts, total).astype(np.int32)


def _aligned(names: list[str | None]) -> dict[str, Any]:
    """Columns of the names of the chains' alignments."""
    alignments = tuple(sorted({name for name in names if name}))
    rows = [alignments.index(name) if name else -1 for name in names]
    return {"alignments": alignments, "chain_alignment": np.array(rows, np.int32)}


def _of_residues(names: np.ndarray, starts: np.ndarray, total: int) -> dict[str, Any]:
    """Columns of residues that are each one component and one molecule."""
    rows, ends = np.arange(len(names), dtype=np.int32), _offsets(starts, total)
    return {
        "residue_name": names,
        "residue_component": rows,
        "residue_atom": ends,
        "atom_reference": np.arange(total, dtype=np.int32),
        "component_molecule": rows,
        "molecule_name": tuple(names.tolist()),
        "molecule_atom": ends,
        "molecule_bond": np.zeros([0, 2], np.int32),
    }


def _runs(*columns: np.ndarray) -> np.ndarray:
    """Starts of runs of equal rows in these columns."""
    new = np.zeros(len(columns[0]), bool)
    new[:1] = True
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(new)


def name_codes(names: np.ndarray) -> np.ndarray:
    """Characters of atom names minus 32, cut to four."""
    text = np.char.ljust(names.astype("<U4"), 4).astype("<U4")
    return (text.view(np.uint32).reshape(-1, 4) - 32).astype(np.uint8)


def alignments_of(view: EntryView) -> dict[int, str]:
    """Name of the alignment of every entity that has one."""
    rows = np.flatnonzero(view.chain_alignment >= 0)
    names = [view.alignments[row] for row in view.chain_alignment[rows].tolist()]
    return dict(zip(view.chain_entity[rows].tolist(), names, strict=True))


def rdkit_graph(pack: Path, name: str) -> Any:
    """A recorded reference molecule of OpenFold3."""
    from rdkit import Chem

    molecules = _openfold3_molecules(pack)
    element, charge = molecules[f"{name}.element"], molecules[f"{name}.charge"]
    types = {3: "AROMATIC", 4: "DOUBLE", 6: "TRIPLE"}
    graph = Chem.RWMol()
    for number, formal in zip(element.tolist(), charge.tolist(), strict=True):
        atom = Chem.Atom(number)
        atom.SetFormalCharge(formal)
        atom.SetNoImplicit(True)
        graph.AddAtom(atom)
    for first, second, kind in molecules[f"{name}.bonds"].tolist():
        graph.AddBond(first, second, getattr(Chem.BondType, types.get(kind, "SINGLE")))
    return graph


@functools.cache
def _openfold3_orders(pack: Path, name: str) -> np.ndarray:
    """Atom orders that map a molecule onto itself, `[P, a]`, as RDKit lists them."""
    graph = rdkit_graph(pack, name)
    return np.array(graph.GetSubstructMatches(graph, uniquify=False, maxMatches=1000), np.int32)


def _openfold3(pack: Path, entry: str) -> EntryView:
    atom = read(pack / "openfold3" / "structure" / f"{entry}.npz", "atom.").arrays
    cache = openfold3_cache(pack)
    training = cache["training_cache"]["structure_data"].get(entry)
    meta = training or cache["metadata"]["structure_data"][entry]
    total = len(atom["chain_id"])
    chains = _runs(atom["chain_id"])
    residues = _runs(atom["chain_id"], atom["res_id"], atom["ins_code"], atom["res_name"])
    names = atom["chain_id"][chains].astype(np.str_)
    residue_chain = np.searchsorted(chains, residues, side="right") - 1
    aligned = [meta["chains"].get(name, {}).get("alignment_representative_id") for name in names]
    molecule_names = [meta["chains"].get(name, {}).get("reference_mol_id") for name in names]
    single = np.array([molecule_names[chain] is not None for chain in residue_chain])
    fresh = np.ones(len(residues), bool)
    fresh[1:] = ~(single[1:] & (residue_chain[1:] == residue_chain[:-1]))
    component = np.cumsum(fresh) - 1
    titles = [
        molecule_names[chain] or name
        for chain, name in zip(residue_chain[fresh], atom["res_name"][residues][fresh], strict=True)
    ]
    molecules = tuple(sorted(set(titles)))
    tables = _openfold3_molecules(pack)
    sizes = [len(tables[f"{name}.name"]) for name in molecules]
    starts = np.append(0, np.cumsum(sizes)).astype(np.int32)
    reference = np.full(total, -1, np.int32)
    component_atoms = _offsets(residues[fresh], total)
    rank = {name: number for number, name in enumerate(molecules)}
    for title, first, stop in zip(titles, component_atoms, component_atoms[1:], strict=False):
        molecule_rows = {name: i for i, name in enumerate(numbered(tables[f"{title}.name"]))}
        atom_names = numbered(atom["atom_name"][first:stop])
        reference[first:stop] = [starts[rank[title]] + molecule_rows[name] for name in atom_names]
    joined = {
        part: np.concatenate([tables[f"{name}.{part}"] for name in molecules])
        for part in ("pos", "used", "element", "charge")
    }
    tokens = _runs(atom["token_id"])
    centres = np.flatnonzero(atom["token_center_atom"])
    present = atom["occupancy"] > 0
    token_residue = np.searchsorted(residues, tokens, side="right") - 1
    codes = {name: number for number, name in enumerate(OPENFOLD3_NAMES)}
    types = np.array([codes.get(name, 20) for name in atom["res_name"][residues]], np.uint8)
    kinds = np.array([ChainType.PROTEIN, ChainType.RNA, ChainType.DNA, ChainType.LIGAND])
    entities = atom["entity_id"][chains].astype(np.int32)
    interfaces = meta["interfaces"]
    pairs = [name.split("_") for name in interfaces] if isinstance(interfaces, dict) else interfaces
    row = {name: number for number, name in enumerate(names)}
    return EntryView(
        entry=entry,
        resolution=float("nan") if meta["resolution"] is None else meta["resolution"],
        chain_name=names,
        chain_type=kinds[atom["molecule_type_id"][chains]].astype(np.uint8),
        chain_entity=entities,
        chain_sym=copies_of(entities),
        chain_valid=np.ones(len(names), bool),
        chain_residue=_offsets(np.searchsorted(residues, chains), len(residues)),
        **_aligned(aligned),
        residue_name=atom["res_name"][residues],
        residue_index=atom["res_id"][residues].astype(np.int32),
        residue_type=types,
        residue_present=np.add.reduceat(present, residues) > 0,
        residue_component=component.astype(np.int32),
        residue_atom=_offsets(residues, total),
        atom_name=name_codes(atom["atom_name"]),
        atom_element=joined["element"][reference].astype(np.uint8),
        atom_charge=joined["charge"][reference].astype(np.int8),
        atom_position=np.nan_to_num(atom["coord"]),
        atom_present=present,
        atom_reference=reference,
        token_atom=tokens.astype(np.int32),
        token_atoms=np.diff(_offsets(tokens, total)),
        token_residue=token_residue.astype(np.int32),
        token_type=types[token_residue],
        token_centre=centres.astype(np.int32),
        token_distogram=np.full(len(tokens), -1, np.int32),
        token_atomized=atom["is_atomized"][tokens],
        token_resolved=present[centres],
        bond_atom=atom["bonds"][:, :2].astype(np.int32),
        bond_type=atom["bonds"][:, 2].astype(np.uint8),
        interface_chain=np.array([[row[a], row[b]] for a, b in pairs], np.int32).reshape(-1, 2),
        component_molecule=np.array([rank[title] for title in titles], np.int32),
        molecule_name=molecules,
        molecule_atom=starts,
        molecule_bond=np.concatenate(
            [
                tables[f"{name}.bonds"][:, :2] + start
                for name, start in zip(molecules, starts[:-1], strict=True)
            ]
        ).astype(np.int32),
        molecule_position=joined["pos"].astype(np.float32)[None],
        molecule_mask=joined["used"],
        molecule_orders=tuple(_openfold3_orders(pack, name) for name in molecules),
    )


def _boltz(pack: Path, entry: str) -> EntryView:
    meta, table = read(pack / "boltz" / "structure" / f"{entry}.npz")

    def part(prefix: str) -> dict[str, Any]:
        return {k.removeprefix(prefix): v for k, v in table.items() if k.startswith(prefix)}

    atoms, residues = part("structure.atoms."), part("structure.residues.")
    chains, tokens = part("structure.chains."), part("tokens.table.")
    bonds, links = part("structure.bonds."), part("structure.connections.")
    number = np.searchsorted(residues["atom_idx"], tokens["atom_idx"], side="right") - 1
    aligned = [chain["msa_id"] for chain in meta["record"]["chains"]]
    between = part("structure.interfaces.")
    count, total = len(residues["name"]), len(atoms["element"])
    return EntryView(
        entry=entry,
        resolution=float(meta["record"]["structure"]["resolution"] or "nan"),
        chain_name=chains["name"],
        chain_type=chains["mol_type"].astype(np.uint8),
        chain_entity=chains["entity_id"],
        chain_sym=chains["sym_id"],
        chain_valid=table["structure.mask"],
        chain_residue=_offsets(chains["res_idx"], count),
        **_aligned([chain if isinstance(chain, str) else None for chain in aligned]),
        **_of_residues(residues["name"], residues["atom_idx"], total),
        residue_index=residues["res_idx"],
        residue_type=residues["res_type"].astype(np.uint8),
        residue_present=residues["is_present"],
        atom_name=atoms["name"].astype(np.uint8),
        atom_element=atoms["element"].astype(np.uint8),
        atom_charge=atoms["charge"],
        atom_position=atoms["coords"],
        atom_present=atoms["is_present"],
        token_atom=tokens["atom_idx"],
        token_atoms=tokens["atom_num"],
        token_residue=number.astype(np.int32),
        token_type=tokens["res_type"].astype(np.uint8),
        token_centre=tokens["center_idx"],
        token_distogram=tokens["disto_idx"],
        token_atomized=~residues["is_standard"][number],
        token_resolved=tokens["resolved_mask"],
        bond_atom=np.concatenate(
            [np.stack([chain["atom_1"], chain["atom_2"]], 1) for chain in (bonds, links)]
        ).astype(np.int32),
        bond_type=np.concatenate([bonds["type"], 0 * links["atom_1"]]).astype(np.uint8),
        interface_chain=np.stack([between["chain_1"], between["chain_2"]], 1).astype(np.int32),
        molecule_position=atoms["conformer"][None],
        molecule_mask=np.ones(total, bool),
        molecule_orders=tuple(np.arange(n)[None] for n in residues["atom_num"]),
    )


def _protenix(pack: Path, entry: str) -> ProtenixView:
    meta, table = read(pack / "protenix" / "structure" / f"{entry}.npz")
    atom = {k.removeprefix("atom."): v for k, v in table.items() if k.startswith("atom.")}
    total = len(atom["chain_id"])
    chains = _runs(atom["chain_id"])
    residues = _runs(atom["chain_id"], atom["res_id"], atom["res_name"])
    counts = table["token.atom_count"]
    tokens = np.append(0, np.cumsum(counts))[:-1]
    first = table["token.atom_indices"][tokens]
    token_residue = np.searchsorted(residues, first, side="right") - 1
    names = atom["chain_id"][chains].astype(np.str_)
    row = {name: number for number, name in enumerate(names)}
    pairs = [
        (row[x["chain_1_id"]], row[x["chain_2_id"]])
        for x in meta["indices"]
        if x["type"] == "interface"
    ]
    kinds = {x.name.lower(): x for x in ChainType}
    lookup = [kinds[name] for name in atom["chain_mol_type"][chains].tolist()]
    sizes = np.diff(_offsets(residues, total))
    numbers = {name: number for number, name in enumerate(ELEMENTS, 1)}
    resolved = atom["is_resolved"]
    distogram = np.full(len(first), -1, np.int32)
    marked = np.flatnonzero(atom["distogram_rep_atom_mask"])
    distogram[np.searchsorted(first, marked, side="right") - 1] = marked
    polymers = meta["other"]["entity_poly_type"]
    entities = atom["label_entity_id"][chains].tolist()
    codes = {name: code for code, name in enumerate(OPENFOLD3_NAMES)}
    types = np.array([codes[name] for name in atom["cano_seq_resname"][residues]], np.uint8)
    return ProtenixView(
        entry=entry,
        resolution=float(atom["resolution"][0]),
        chain_name=names,
        chain_type=np.array(lookup, np.uint8),
        chain_entity=atom["entity_id_int"][chains].astype(np.int32),
        chain_sym=atom["sym_id_int"][chains].astype(np.int32),
        chain_valid=np.ones(len(names), bool),
        chain_asym=atom["asym_id_int"][chains].astype(np.int32),
        chain_polymer=np.array([_POLYMERS[polymers.get(x, "")] for x in entities], np.uint8),
        chain_residue=_offsets(np.searchsorted(residues, chains), len(residues)),
        **_aligned([x if x in polymers else None for x in entities]),
        **_of_residues(atom["res_name"][residues], residues, total),
        residue_index=atom["res_id"][residues].astype(np.int32),
        residue_type=types,
        residue_kind=np.array([kinds[x] for x in atom["mol_type"][residues]], np.uint8),
        residue_present=np.add.reduceat(resolved, residues) > 0,
        atom_name=name_codes(atom["atom_name"]),
        atom_element=np.array([numbers.get(x, 0) for x in atom["element"]], np.uint8),
        atom_charge=atom["ref_charge"].astype(np.int8),
        atom_position=atom["coord"],
        atom_present=resolved,
        token_atom=first.astype(np.int32),
        token_atoms=counts.astype(np.int32),
        token_residue=token_residue.astype(np.int32),
        token_type=types[token_residue],
        token_centre=table["token.centre_atom_index"].astype(np.int32),
        token_distogram=distogram,
        token_atomized=(counts == 1) & (sizes[token_residue] > 1),
        token_resolved=resolved[table["token.centre_atom_index"]],
        bond_atom=atom["bonds"][:, :2].astype(np.int32),
        bond_type=atom["bonds"][:, 2].astype(np.uint8),
        interface_chain=np.array(pairs, np.int32).reshape(-1, 2),
        molecule_position=atom["ref_pos"].astype(np.float32)[None],
        molecule_mask=atom["ref_mask"] > 0,
        molecule_orders=tuple(_residue_orders(atom["res_perm"], residues, sizes)),
    )


_POLYMERS = defaultdict(lambda: OTHER_POLYMER) | {
    "": ChainType.LIGAND,
    "polypeptide(L)": ChainType.PROTEIN,
    "polydeoxyribonucleotide": ChainType.DNA,
    "polyribonucleotide": ChainType.RNA,
}


def _residue_orders(texts: np.ndarray, residues: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Orders `[P, a]` of each residue, from every atom's indices joined by underscores."""
    out = []
    for start, size in zip(residues, sizes, strict=True):
        columns = [[int(n) for n in text.split("_")] for text in texts[start : start + size]]
        out.append(np.array(columns, np.int32).T)
    return out


_VIEWS = {"openfold3": _openfold3, "boltz": _boltz, "protenix": _protenix}
