"""Entries of a dataset as the set that OpenFold3 trains on: what its own preparation writes.

python experiments/openfold3_training_set/write_set.py data/ openfold3_set/
run_openfold train --runner_yaml openfold3_set/training.yml

Layout of OpenFold3 0.5.0: `primitives/caches/format.py`, `io/structure/atom_array.py`,
`io/sequence/msa.py`, `primitives/structure/template.py`, `io/structure/mol.py`.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from evofeed.base.errors import ChainMissing, InputError
from evofeed.featurize.entries.molecules import (
    MoleculeAtoms,
    component_atoms,
    ligand_atoms,
    molecule_graph,
)
from evofeed.featurize.entries.targets import ONE_LETTER
from evofeed.featurize.export.rows import Rows, rows_of_alignment
from evofeed.loader.views.config import MAIN_SOURCES, OpenFold3Config
from evofeed.protein.alignment import Templates
from evofeed.protein.components import Component
from evofeed.protein.datapoints import RESTYPES, alignment_name, molecule_names
from evofeed.protein.entry_record import HYDROGENS, LIGAND, RNA, Entity, EntryRecord
from evofeed.protein.molecules import Molecule, molecule, numbered
from evofeed.protein.residues import GAP
from evofeed.protein.ruleset_section import RulesetSection, placed
from evofeed.store import Dataset

KINDS = ("PROTEIN", "DNA", "RNA", "LIGAND")  # by `RulesetSection.chain_type`
NUMBERS = np.array([0, 2, 1, 3])  # OpenFold3's numbers of these
RULES = OpenFold3Config()


def main(uri: str, out: str) -> list[str]:
    """Write the entries that OpenFold3 takes, and what they need."""
    made, entries = WrittenSet(uri, Path(out)), Dataset.open(uri).entries
    for number, name in enumerate(entries):
        try:
            made.add(number, name)
        except (ChainMissing, InputError) as error:
            print(f"left out: {name}: {error}", file=sys.stderr)
    made.finish()
    return [*made.structures]


class WrittenSet:
    """A set that grows; molecules and alignments are written once."""

    def __init__(self, uri: str, root: Path) -> None:
        self.root, self.entries = root, Dataset.open(uri).entries
        self.molecules = self.entries.molecules("openfold3")
        self.components = self.entries.components()
        points = [p for p in self.entries.datapoints.to_pylist() if p["project"] == "openfold3"]
        self.clusters = {(one["entry"], one["chain_a"]): one["cluster_a"] for one in points}
        self.structures: dict[str, Any] = {}
        self.reference: dict[str, Any] = {}
        self.aligned: dict[str, tuple[str, dict[str, str]]] = {}
        self.sources: dict[str, None] = {}

    def add(self, number: int, name: str) -> None:
        """Write an entry."""
        record, section = self.entries[name], self.entries.section(name, "openfold3")
        component, titles = molecule_names(record.entry, section)
        for title in sorted(set(titles) - self.reference.keys()):
            self.reference[title] = self.save_molecule(title, record, section)
        chains = {}
        for row, chain in enumerate(section.chain_name.tolist()):
            asym, kind = section.chain_asym[row], int(section.chain_type[row])
            title = titles[component[section.chain_residue[row]]]
            entity = record.entities[record.chain_entity[asym]]
            query, dates = None, {}
            if kind in (0, RNA):
                query, dates = self.save_alignment(entity, kind == RNA, f"{name}_{chain}")
            chains[chain] = {
                "label_asym_id": record.chain_label[asym],
                "auth_asym_id": record.chain_author[asym],
                "entity_id": int(section.chain_entity[row]),
                "molecule_type": KINDS[kind],
                "reference_mol_id": title if kind == LIGAND else None,
                "alignment_representative_id": query,
                "template_ids": earlier(dates, record) if kind == 0 else None,
                "cluster_id": self.reference[title]["canonical_smiles"]  # as OpenFold3 has it
                if kind == LIGAND
                else self.clusters[number, row],
            }
        self.save(f"structure_files/{name}/{name}", structure(record, section))
        names, resolution = section.chain_name, record.resolution()
        self.structures[name] = {
            "release_date": min(record.release_dates, default=None),
            "resolution": None if np.isnan(resolution) else resolution,
            "chains": chains,
            "interfaces": {f"{names[a]}_{names[b]}": {} for a, b in section.interface.tolist()},
        }

    def save(self, name: str, arrays: dict[str, Any]) -> None:
        """Write arrays; what is none becomes one of objects, as OpenFold3 has it."""
        path = self.root / f"{name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            path,
            **{
                k: v if isinstance(v, np.ndarray) else np.array(v, object)
                for k, v in arrays.items()
            },
        )

    def save_molecule(
        self, title: str, record: EntryRecord, section: RulesetSection
    ) -> dict[str, Any]:
        """Write the reference molecule of a component, or of a ligand of several."""
        one, known = molecule(self.molecules, title), self.components.get(title)
        parts = component_atoms(known) if known else parts_of(title, record, section)
        text, smiles = annotated_sdf(title, one, parts)
        source = origin(one, known)
        (self.root / "reference_mols").mkdir(parents=True, exist_ok=True)
        (self.root / "reference_mols" / f"{title}.sdf").write_text(text)
        return {
            "conformer_gen_strategy": "default" if source == "rdkit" else "use_fallback",
            "fallback_conformer_pdb_id": known.model_entry if source == "ccd-model" else None,
            "canonical_smiles": smiles,
            "set_fallback_to_nan": False,  # hidden atoms are masked
            "fallback_conformer_source": source,
        }

    def save_alignment(self, entity: Entity, is_rna: bool, name: str) -> tuple[str, dict[str, str]]:
        """Write the rows and templates of a sequence under the name of the first chain that has it;
        this name, and the dates of the templates."""
        query = entity.sequence
        if len(query) != len(entity.monomers):
            unknown = "N" if is_rna else "X"
            query = "".join(ONE_LETTER.get(code, unknown) for code in entity.monomers)
        digest = alignment_name(query, is_rna=is_rna)
        if digest not in self.aligned:
            tables, dates = {}, {}
            with contextlib.suppress(ChainMissing):
                found = self.entries.alignment(digest)
                for rows in (rows_of_alignment(found, source) for source in found.sources):
                    paired = rows.name in (*RULES.pair_sources, "pairing")
                    title = "uniprot_hits" if rows.name == "pairing" else rows.name
                    tables[title] = pairing_table(rows) if paired else row_table(rows)
                dates = self.save_templates(name, found.templates)
            if not tables.keys() - {*RULES.pair_sources}:
                letters = np.array([[*query]])
                tables["dummy"] = table(letters, np.zeros(letters.shape, np.int64), ["query"])
            self.sources |= dict.fromkeys(tables)
            self.save(f"alignment_arrays/{name}", tables)
            self.aligned[digest] = name, dates
        return self.aligned[digest]

    def save_templates(self, name: str, templates: Templates | None) -> dict[str, str]:
        """Write the templates of a sequence; their dates by name."""
        known, home = {}, name.replace("_", "-")  # a name has one underscore, before the chain
        for row, date in enumerate(templates.date if templates else ()):
            columns = np.flatnonzero(templates.restype[row] != GAP)
            types, place = templates.restype[row, columns], templates.position[row, columns]
            atoms = template_atoms(columns + 1, types, place)
            self.save(f"template_structures/{home}/{home}_{row}", atoms)
            pairs = np.stack([columns + 1, columns + 1], 1)
            known[f"{home}_{row}"] = {"index": row, "release_date": date, "idx_map": pairs}
        if known:
            self.save(f"template_cache/{name}", known)
        return {one: about["release_date"] for one, about in known.items()}

    def finish(self) -> None:
        """Write the cache, now that clusters can be counted, and settings for training."""
        points = []
        for about in self.structures.values():
            points += about["chains"].values()
            for name, interface in about["interfaces"].items():
                ends = sorted(about["chains"][one]["cluster_id"] for one in name.split("_"))
                interface["cluster_id"] = "_".join(ends)
                points.append(interface)
        counts = Counter(one["cluster_id"] for one in points)
        for one in points:
            one["cluster_size"] = counts[one["cluster_id"]]
        cache = {
            "_type": "ClusteredDatasetCache",
            "name": "evofeed",
            "structure_data": self.structures,
            "reference_molecule_data": self.reference,
        }
        (self.root / "training_cache.json").write_text(json.dumps(cache, indent=1))
        (self.root / "training.yml").write_text(json.dumps(self.settings(), indent=1))  # is YAML

    def settings(self) -> dict[str, Any]:
        """Settings of OpenFold3's training that name the set."""
        root = self.root.absolute()
        paths = {
            "dataset_cache_file": f"{root}/training_cache.json",
            "target_structures_directory": f"{root}/structure_files",
            "target_structure_file_format": "npz",
            "alignment_array_directory": f"{root}/alignment_arrays",
            "reference_molecule_directory": f"{root}/reference_mols",
        }
        if any(dates for _, dates in self.aligned.values()):
            paths |= {
                "template_cache_directory": f"{root}/template_cache",
                "template_structure_array_directory": f"{root}/template_structures",
                "template_file_format": "npz",
            }
        known = {*MAIN_SOURCES, *RULES.pair_sources}
        order = [*MAIN_SOURCES, *(one for one in self.sources if one not in known)]
        about = {
            "dataset_class": "WeightedPDBDataset",
            "weight": 1.0,
            "config": {"msa": {"aln_order": order}},
        }
        return {
            "dataset_paths": {"evofeed": paths},
            "dataset_configs": {"train": {"evofeed": about}},
        }


def structure(record: EntryRecord, section: RulesetSection) -> dict[str, np.ndarray]:
    """An assembly as the array of atoms that biotite has of it."""
    chain, residue, row = section.atom_chain(), section.atom_residue(), section.atom_row
    operator, seen, asym = section.chain_operator[chain], row >= 0, section.chain_asym[chain]
    place = placed(record.atom_position[row], operator, record.operators, single=True)
    columns = {
        "chain_id": section.chain_name[chain],
        "res_id": section.residue_index[residue],
        "ins_code": section.residue_insertion[residue],
        "res_name": section.residue_name[residue],
        "hetero": section.residue_hetero[residue],
        "atom_name": section.atom_name,
        "element": section.atom_element,
        "charge": section.atom_charge,
        "occupancy": np.where(seen, record.atom_occupancy[row], 0),
        "entity_id": section.chain_entity[chain],
        "molecule_type_id": NUMBERS[section.chain_type[chain]],
        "sym_id": section.chain_copy[chain],
        "label_asym_id": np.array(record.chain_label)[asym],
        "auth_asym_id": np.array(record.chain_author)[asym],
        "bonds": np.column_stack([section.bond_atom, section.bond_type]),
        "coord": np.where(seen[:, None], place, np.float32(np.nan)),
    }
    return {k: v.astype(np.int64) if v.dtype.kind in "iu" else v for k, v in columns.items()}


def template_atoms(number: np.ndarray, types: np.ndarray, place: np.ndarray) -> dict[str, Any]:
    """N, CA, C and CB of a template's residues, numbered as the query's that they face."""
    name, atom = np.array(RESTYPES)[types].repeat(4), np.tile(["N", "CA", "C", "CB"], len(types))
    one = {
        "chain_id": np.full(len(name), "A"),
        "res_id": number.repeat(4),
        "ins_code": np.full(len(name), ""),
        "res_name": name,
        "hetero": np.zeros(len(name), bool),
        "atom_name": atom,
        "element": atom.astype("<U1"),
        "occupancy": np.ones(len(name)),
        "molecule_type_id": np.zeros(len(name), np.int64),
        "coord": place.reshape(-1, 3),
    }
    return {key: column[(name != "GLY") | (atom != "CB")] for key, column in one.items()}


def earlier(dates: dict[str, str], record: EntryRecord) -> list[str]:
    """Templates that are so much older than the entry as training asks for; none without a date."""
    last = ""
    with contextlib.suppress(ValueError):
        first = datetime.date.fromisoformat(min(record.release_dates, default=""))
        last = (first - datetime.timedelta(RULES.templates_before_days)).isoformat()
    return [name for name, date in dates.items() if date <= last]


def row_table(rows: Rows) -> dict[str, Any]:
    """Rows as OpenFold3 keeps an alignment that it has read."""
    deletions = np.zeros(rows.letters.shape, np.int64)
    deletions[rows.deletion_row, rows.deletion_column] = rows.deletion_count
    letters = np.ascontiguousarray(rows.letters, np.uint32).view("<U1")
    return table(letters, deletions, [f"r{number}" for number in range(len(letters))])


def pairing_table(rows: Rows) -> dict[str, Any]:
    """Rows with species, under names that OpenFold3 takes these from."""
    whole, end = row_table(rows), rows.letters.shape[1]
    kept = np.array([0, *(n for n, name in enumerate(rows.species) if n and name)])
    names = [f"tr|R{n}|R{n}_{rows.species[n]}/1-{end}" for n in kept.tolist()]
    return table(whole["msa"][kept], whole["deletion_matrix"][kept], names)


def table(letters: np.ndarray, deletions: np.ndarray, names: list[str]) -> dict[str, Any]:
    """Rows of one source."""
    return {"msa": letters, "deletion_matrix": deletions, "metadata": names}


def parts_of(title: str, record: EntryRecord, section: RulesetSection) -> MoleculeAtoms:
    """What a ligand of several components is drawn of: its first copy."""
    entity = int(title.rpartition("_")[2])
    chains = np.flatnonzero((section.chain_entity == entity) & (section.chain_type == LIGAND))
    return ligand_atoms(record, section, int(chains[0]))


def annotated_sdf(title: str, one: Molecule, parts: MoleculeAtoms) -> tuple[str, str]:
    """A molecule with its conformer as OpenFold3 writes it, and its SMILES.

    Raises:
        InputError: RDKit does not read it back, so that OpenFold3 could not; or atoms have no
            definition.
    """
    from rdkit import Chem

    names = numbered(parts.name[~np.isin(parts.element, HYDROGENS)])
    row = {name: number for number, name in enumerate(numbered(one.name))}
    if lost := row.keys() - set(names):
        raise InputError(f"no definition of atoms {sorted(lost)} of molecule {title}")
    place, mask = np.zeros((len(names), 3)), np.zeros(len(names), bool)
    there = np.array([name in row for name in names])
    rows = [row[name] for name in names if name in row]
    place[there], mask[there] = one.position[0][rows], one.mask[rows]
    conformer, supplier = Chem.Conformer(len(names)), Chem.SDMolSupplier()
    conformer.SetPositions(place)
    try:
        graph = Chem.RemoveAllHs(molecule_graph(parts))
        graph.AddConformer(conformer)
        graph.SetProp("_Name", title)
        graph.SetProp("atom_annot_atom_name", " ".join(name for name, _ in names))
        graph.SetProp("atom_annot_used_atom_mask", " ".join(map(str, mask.tolist())))
        text: str = Chem.SDWriter.GetText(graph)
    except (ValueError, RuntimeError) as error:
        raise InputError(f"RDKit does not write reference molecule {title}: {error}") from None
    supplier.SetData(text)
    if supplier[0] is None:
        raise InputError(f"RDKit does not read back reference molecule {title}")
    return text, Chem.MolToSmiles(graph)


def origin(one: Molecule, known: Component | None) -> str:
    """Where a conformer is from, in OpenFold3's words."""
    if not one.mask.any():
        return "all-nan"
    own = one.position[0][one.mask]
    for kind in ("ideal", "model") if len(one.mask) > 1 else ():  # an atom alone is at 0
        place = getattr(known, kind)[known.heavy] if known else own[:0]
        if len(place) == len(one.mask) and np.array_equal(own, place[one.mask].astype(np.float32)):
            return f"ccd-{kind}"
    return "rdkit"


if __name__ == "__main__":
    print(f"{len(main(*sys.argv[1:]))} entries")
