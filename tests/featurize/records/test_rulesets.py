"""Cleaning by OpenFold3's, Boltz's and Protenix's rules, against structures that they prepared."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.featurize.records.allatom import (
    boltz_alignments,
    boltz_molecules,
    components,
    differing,
    openfold3_alignments,
    openfold3_molecules,
    protenix_molecules,
    record,
    sorted_bonds,
)
from tests.loader.views.boltz_recorded import boltz_view as recorded_view
from tests.loader.views.packs import (
    alignments_of,
    entry_view,
    openfold3_cache,
    packs,
    read,
    recordings,
    some_recordings,
)

from evofeed.featurize.entries.molecules import (
    MoleculeAtoms,
    component_atoms,
    component_molecule,
    ligand_atoms,
    molecule_graph,
)
from evofeed.featurize.records.rulesets.boltz import boltz_section
from evofeed.featurize.records.rulesets.boltz_rules import BoltzRules
from evofeed.featurize.records.rulesets.openfold3 import OpenFold3Rules, openfold3_section
from evofeed.featurize.records.rulesets.protenix import ProtenixRules, protenix_section
from evofeed.loader.views.boltz.tables import boltz_view
from evofeed.loader.views.openfold3.tables import openfold3_view
from evofeed.loader.views.protenix.tables import canonical_sequences, protenix_view
from evofeed.protein.components import ComponentTable
from evofeed.protein.entry_record import AssemblyCopies, ChainType, EntryRecord, Link, LinkEnd
from evofeed.protein.ruleset_section import EntryRefused, RulesetSection, placed

OPENFOLD3 = recordings("openfold3/structure/*.npz")
COPY_TOLERANCE = 1e-5
KINDS = np.array([0, 2, 1, 3])


def section_of(path: Path) -> RulesetSection:
    return openfold3_section(record(path.parents[2], path.stem), components(path.parents[2]))


@pytest.mark.parametrize("path", OPENFOLD3, ids=lambda path: path.stem)
def test_cleaning_gives_the_atoms_bonds_metadata_and_view_that_openfold3_has(path: Path) -> None:
    pack = path.parents[2]
    entry, section = record(pack, path.stem), section_of(path)
    recorded = read(path, "atom.").arrays
    chain, residue, row = section.atom_chain(), section.atom_residue(), section.atom_row
    assert recorded["atom_name"].tolist() == section.atom_name.tolist()
    columns = {
        "chain_id": section.chain_name[chain],
        "res_id": section.residue_index[residue],
        "ins_code": section.residue_insertion[residue],
        "res_name": section.residue_name[residue],
        "hetero": section.residue_hetero[residue],
        "element": section.atom_element,
        "charge": section.atom_charge,
        "occupancy": np.where(row >= 0, entry.atom_occupancy[row], 0),
        "entity_id": section.chain_entity[chain],
        "molecule_type_id": KINDS[section.chain_type[chain]],
        "sym_id": section.chain_copy[chain],
        "label_asym_id": np.array(entry.chain_label)[section.chain_asym[chain]],
    }
    for name, values in columns.items():
        assert np.array_equal(values, recorded[name]), name
    position = placed(
        entry.atom_position[row], section.chain_operator[chain], entry.operators, single=True
    )
    position[row < 0] = np.nan
    np.testing.assert_allclose(position, recorded["coord"], rtol=0, atol=COPY_TOLERANCE)
    assert sorted_bonds(section.bond_atom, section.bond_type) == sorted_bonds(
        recorded["bonds"][:, :2], recorded["bonds"][:, 2]
    )

    metadata = openfold3_cache(pack)["metadata"]["structure_data"][path.stem]
    names = section.chain_name
    assert [[names[a], names[b]] for a, b in section.interface] == metadata["interfaces"]
    assert set(names.tolist()) == set(metadata["chains"])
    for name, asym, entity in zip(names, section.chain_asym, section.chain_entity, strict=True):
        assert metadata["chains"][name]["label_asym_id"] == entry.chain_label[asym]
        assert metadata["chains"][name]["auth_asym_id"] == entry.chain_author[asym]
        assert metadata["chains"][name]["entity_id"] == entity
    assert min(entry.release_dates) == metadata["release_date"]
    assert entry.methods[0] == metadata["experimental_method"]
    resolution = entry.resolution()
    assert (None if np.isnan(resolution) else resolution) == metadata["resolution"]

    alignments = openfold3_alignments(pack, path.stem)
    view = openfold3_view(entry, section, openfold3_molecules(pack), alignments)
    expected = entry_view("openfold3", pack, path.stem)
    skipped = ("bond_", "molecule_orders")
    assert differing(view, expected, skipped=skipped, unordered=("interface_chain",)) == []
    bonds = [sorted_bonds(v.bond_atom, v.bond_type) for v in (view, expected)]
    assert bonds[0] == bonds[1]


def smiles(parts: MoleculeAtoms, conformer: np.ndarray) -> str:
    """SMILES of a molecule with the stereochemistry of these coordinates of its heavy atoms."""
    from rdkit import Chem

    graph = Chem.RemoveAllHs(molecule_graph(parts))
    Chem.RemoveStereochemistry(graph)
    coordinates = Chem.Conformer(len(conformer))
    coordinates.SetPositions(conformer.astype(np.float64))
    graph.AddConformer(coordinates)
    Chem.AssignStereochemistryFrom3D(graph)
    return str(Chem.MolToSmiles(graph))


@pytest.mark.parametrize("pack", packs(), ids=lambda pack: pack.name)
def test_conformers_are_of_the_stereoisomers_that_openfold3_has(pack: Path) -> None:
    recorded = openfold3_cache(pack)["training_cache"]["reference_molecule_data"]
    table = components(pack)
    smiles_of = {
        code: molecule["canonical_smiles"] for code, molecule in recorded.items() if code in table
    }
    small = [code for code in smiles_of if table[code].heavy.sum() < 30]
    organic = [code for code in small if "->" not in smiles_of[code]]  # no metal's neighbours
    assert len(organic) > 20
    for code in organic:
        expected = smiles_of[code]
        for conformer in component_molecule(table[code], 4).molecule.position:
            assert smiles(component_atoms(table[code]), conformer) == expected, code


def test_a_ligand_has_the_bonds_and_the_stereochemistry_of_its_atoms_in_the_entry() -> None:
    path = next(recording for recording in OPENFOLD3 if recording.stem == "1pfe")
    entry, section = record(path.parents[2], "1pfe"), section_of(path)
    (chain, *_) = np.flatnonzero(section.residue_name[section.chain_residue[:-1]] == "QUI").tolist()
    parts = ligand_atoms(entry, section, chain)
    assert smiles(parts, parts.position) == "O=Cc1cnc2ccccc2n1"


@pytest.mark.parametrize("pack", packs(), ids=lambda pack: pack.name)
def test_an_entry_that_openfold3_loses_is_refused_with_a_reason(pack: Path) -> None:
    status = openfold3_cache(pack)["metadata"]["structure_data"]
    failed = [name for name, metadata in status.items() if metadata["status"] != "success"]
    for name in failed:
        with pytest.raises(EntryRefused) as refusal:
            openfold3_section(record(pack, name), components(pack))
        assert name in str(refusal.value)
        right = openfold3_section(record(pack, name), components(pack), OpenFold3Rules.right())
        assert len(right.chain_name)


@pytest.mark.parametrize(
    "change",
    [
        {"release_dates": ()},
        {"methods": ()},
        {"component_types": {}},
        {"name": "P"},
        {"monomers": ()},
    ],
    ids=lambda change: next(iter(change)),
)
def test_an_entry_without_a_table_that_openfold3_reads_is_refused(change: dict[str, Any]) -> None:
    for path in OPENFOLD3:
        entry, table = record(path.parents[2], path.stem), components(path.parents[2])
        if not hasattr(entry, next(iter(change))):
            entities = tuple(dataclasses.replace(entity, **change) for entity in entry.entities)
            wrong = dataclasses.replace(entry, entities=entities)
        else:
            wrong = dataclasses.replace(entry, **change)
        with pytest.raises(EntryRefused, match=r"no _|not a number"):
            openfold3_section(wrong, table)
        openfold3_section(wrong, table, OpenFold3Rules.right())


def test_an_entry_of_which_cleaning_leaves_nothing_is_refused() -> None:
    for path in OPENFOLD3:
        entry = record(path.parents[2], path.stem)
        kinds = [entry.entities[row].polymer for row in entry.chain_entity]
        if "polypeptide(L)" in kinds:
            break
    chain = kinds.index("polypeptide(L)")
    low, high = entry.chain_residue[chain : chain + 2]
    keep = np.isin(np.arange(entry.num_residues), np.arange(low, high))
    alone = dataclasses.replace(entry, copies=(), links=()).taking(keep[entry.atom_residue()])
    half = alone.atom_residue() > alone.num_residues // 2
    torn = dataclasses.replace(alone, atom_position=alone.atom_position + 50 * half[:, None])
    with pytest.raises(EntryRefused, match="no atoms are left"):
        openfold3_section(torn, components(path.parents[2]))
    assert len(openfold3_section(alone, components(path.parents[2])).chain_name) == 1


BOLTZ = recordings("boltz/structure/*.npz")


@pytest.mark.parametrize("path", BOLTZ, ids=lambda path: path.stem)
def test_the_view_of_a_record_is_the_view_of_boltzs_own_tables(path: Path) -> None:
    pack = path.parent.parent.parent
    entry = record(pack, path.stem)
    section = boltz_section(entry, components(pack))
    view = boltz_view(entry, section, boltz_molecules(pack), boltz_alignments(path, section))
    recorded = recorded_view(pack, path.stem)
    # Of a ring's two Kekulé forms Boltz has the one that RDKit chose; nothing reads it.
    skipped = ("molecule_", "component_", "atom_reference", "bond_")
    assert differing(view, recorded, skipped=skipped, unordered=("interface_chain",)) == []
    assert sorted_bonds(view.bond_atom) == sorted_bonds(recorded.bond_atom)
    position = recorded.molecule_position[0][recorded.atom_reference]
    np.testing.assert_allclose(view.molecule_position[0][view.atom_reference], position, atol=1e-6)


@pytest.mark.parametrize("pack", packs(), ids=lambda pack: pack.name)
def test_an_entry_that_boltz_loses_is_refused_with_a_reason(pack: Path) -> None:
    inputs = {path.name.split(".")[0] for path in (pack / "inputs" / "mmcif").glob("*.cif.gz")}
    for name in inputs - {path.stem for path in (pack / "boltz" / "structure").glob("*.npz")}:
        with pytest.raises(EntryRefused, match=name):
            boltz_section(record(pack, name), components(pack))
        right = boltz_section(record(pack, name), components(pack), BoltzRules.right())
        assert right.chain_valid.any()


def protein_with_gaps(path: Path) -> tuple[EntryRecord, int, int]:
    """An entry whose first protein has its last residue alone, the residue and its entity."""
    entry = record(path.parent.parent.parent, path.stem)
    kinds = [entry.entities[row].polymer for row in entry.chain_entity]
    chain = kinds.index("polypeptide(L)")
    low, high = entry.chain_residue[chain : chain + 2]
    keep = np.ones(entry.num_residues, bool)
    keep[low : high - 1] = False
    number = int(entry.residue_seq[high - 1])
    short = dataclasses.replace(entry, links=(), copies=()).taking(keep[entry.atom_residue()])
    return short, number - 1, int(entry.chain_entity[chain])


@pytest.mark.parametrize("path", some_recordings("boltz/structure/*.npz", 3), ids=lambda p: p.stem)
def test_a_residue_without_neighbours_is_aligned_to_the_first_monomer_of_its_name(
    path: Path,
) -> None:
    # As gemmi aligns it for Boltz, observed on 2x1f with one residue left of a chain.
    entry, index, entity = protein_with_gaps(path)
    entry = dataclasses.replace(entry, oligomeric_count="")
    table = components(path.parent.parent.parent)
    monomers = entry.entities[entity].monomers
    positions = []
    for rules in (BoltzRules(), BoltzRules.right()):
        section = boltz_section(entry, table, rules)
        chain = section.chain_entity.tolist().index(entity)
        low, high = section.chain_residue[chain : chain + 2]
        resolved = [
            bool((section.atom_row[slice(*section.residue_atom[row : row + 2])] >= 0).any())
            for row in range(low, high)
        ]
        positions.append(np.flatnonzero(resolved).tolist())
    assert positions == [[monomers.index(monomers[index])], [index]]


@pytest.mark.parametrize("path", some_recordings("boltz/structure/*.npz", 3), ids=lambda p: p.stem)
def test_a_residue_that_the_sequence_lacks_fails_the_entry_unless_mended(path: Path) -> None:
    entry = record(path.parent.parent.parent, path.stem)
    table = components(path.parent.parent.parent)
    row = [entity.polymer for entity in entry.entities].index("polypeptide(L)")
    chain = entry.chain_entity.tolist().index(row)
    low, high = entry.chain_residue[chain : chain + 2]
    number = int(entry.residue_seq[(low + high) // 2])
    monomers = list(entry.entities[row].monomers)
    monomers[number - 1] = "TRP" if monomers[number - 1] != "TRP" else "GLY"
    entities = list(entry.entities)
    entities[row] = dataclasses.replace(entities[row], monomers=tuple(monomers))
    wrong = dataclasses.replace(entry, entities=tuple(entities), links=())
    with pytest.raises(EntryRefused, match="of the sequence"):
        boltz_section(wrong, table)
    assert len(boltz_section(wrong, table, BoltzRules.right()).chain_name)


def test_a_link_to_a_symmetry_mate_leaves_the_atoms_that_a_bond_displaces() -> None:
    for path in BOLTZ:
        pack = path.parent.parent.parent
        entry = record(pack, path.stem)
        moved = tuple(
            dataclasses.replace(
                link, ends=(link.ends[0], dataclasses.replace(link.ends[1], symmetry="2_555"))
            )
            for link in entry.links
        )
        section = boltz_section(entry, components(pack))
        linked = section.bond_atom[section.bond_type == 0].ravel()
        entities = entry.chain_entity[section.chain_asym[section.atom_chain()[linked]]]
        if "non-polymer" not in {entry.entities[entity].kind for entity in entities}:
            continue
        apart = boltz_section(dataclasses.replace(entry, links=moved), components(pack))
        assert len(apart.atom_name) > len(section.atom_name), path.stem
        return
    pytest.skip("no entry has a ligand that a link joins")


def with_operators(entry: EntryRecord, *operators: np.ndarray) -> EntryRecord:
    """The entry in one assembly of all its chains, moved by each operator."""
    copies = AssemblyCopies(asyms=entry.chain_label, operators=tuple(range(len(operators))))
    return dataclasses.replace(entry, copies=(copies,), operators=np.stack(operators), links=())


def half_turn(place: np.ndarray) -> np.ndarray:
    """The operator of a half turn about the z axis through a place."""
    rotation = np.diag([-1.0, -1.0, 1.0])
    return np.column_stack([rotation, place - rotation @ place])


@pytest.mark.parametrize("path", some_recordings("boltz/structure/*.npz", 3), ids=lambda p: p.stem)
def test_chains_are_in_the_order_of_the_file_whatever_the_order_of_the_assembly(path: Path) -> None:
    # As gemmi orders them for Boltz, observed on 1a4w and 2q2k with one author's chain for all.
    entry = dataclasses.replace(record(path.parents[2], path.stem), links=())
    turned = tuple(dataclasses.replace(copies, asyms=copies.asyms[::-1]) for copies in entry.copies)
    table = components(path.parents[2])
    names = [
        boltz_section(dataclasses.replace(entry, copies=copies), table).chain_name.tolist()
        for copies in (entry.copies, turned)
    ]
    assert names[0] == names[1]


def test_copies_are_numbered_by_the_operations_of_the_assembly() -> None:
    # As gemmi names them, observed on 1k6p with its assembly in two rows.
    path = some_recordings("boltz/structure/*.npz", 1)[0]
    entry = record(path.parents[2], path.stem)
    once = with_operators(entry, np.eye(3, 4))
    first, *others = entry.chain_label
    rows = [AssemblyCopies(asyms=asyms, operators=(0,)) for asyms in ((first,), tuple(others))]
    twice = dataclasses.replace(once, copies=tuple(rows))
    section = boltz_section(twice, components(path.parents[2]))
    names = section.chain_name.tolist()
    assert names[0] == f"{first}1"
    assert {name[-1] for name in names[1:]} == {"2"}
    assert not section.chain_copy.any()


def test_an_ion_on_an_axis_of_the_assembly_is_one_chain() -> None:
    # As gemmi merges atoms under 0.2 A for Boltz, observed on entries with an ion moved to an axis.
    entries = ions = 0
    for path in BOLTZ:
        entry, table = record(path.parents[2], path.stem), components(path.parents[2])
        single = boltz_section(with_operators(entry, np.eye(3, 4)), table)
        alone = np.flatnonzero(np.diff(single.residue_atom[single.chain_residue]) == 1)
        if not len(alone) or len(single.chain_name) > 9:
            continue
        row = single.atom_row[single.residue_atom[single.chain_residue[alone[0]]]]
        place = entry.atom_position[row]
        for offset, expected in ((0.05, 1), (0.15, 2)):
            turn = half_turn(place + np.array([offset, 0, 0]))
            section = boltz_section(with_operators(entry, np.eye(3, 4), turn), table)
            assert (section.atom_row == row).sum() == expected, path.stem
            sizes = np.diff(section.residue_atom[section.chain_residue])
            assert len(sizes) == 2 * len(single.chain_name) - (expected == 1), path.stem
            assert (section.interface < len(sizes)).all()
            assert (sizes > 0).all()
            ions += expected
        entries += 1
    assert ions == 3 * entries > 0


def test_copies_at_one_place_are_one_copy() -> None:
    path = some_recordings("boltz/structure/*.npz", 1)[0]
    entry, table = record(path.parents[2], path.stem), components(path.parents[2])
    single = boltz_section(with_operators(entry, np.eye(3, 4)), table)
    twice = boltz_section(with_operators(entry, np.eye(3, 4), np.eye(3, 4)), table)
    assert twice.chain_name.tolist() == single.chain_name.tolist()
    assert twice.atom_row.tolist() == single.atom_row.tolist()
    assert twice.bond_atom.tolist() == single.bond_atom.tolist()
    assert twice.chain_valid.tolist() == single.chain_valid.tolist()
    assert {dropped.reason for dropped in twice.dropped} >= {"at the place of another copy"}


@pytest.mark.parametrize(
    ("symmetry", "drawn"),
    [
        (("1_555", "1_555"), (True, True)),
        (("2_555", "2_555"), (True, True)),
        (("1_555", "2_555"), (False, False)),
        (("", ""), (False, True)),
    ],
)
def test_a_link_in_an_assembly_is_a_bond_if_one_operator_moves_both_ends(
    symmetry: tuple[str, str], drawn: tuple[bool, bool]
) -> None:
    # As in gemmi 0.6.5, observed on 2x1f and 5ugo with other operators in the table of links.
    path = some_recordings("boltz/structure/*.npz", 1)[0]
    table = components(path.parents[2])
    entry = with_operators(record(path.parents[2], path.stem), np.eye(3, 4))
    ends = tuple(first_atom(entry, chain, text) for chain, text in enumerate(symmetry))
    linked = dataclasses.replace(entry, links=(Link(kind="covale", ends=ends, length=1.5),))
    for rules, is_drawn in zip((BoltzRules(), BoltzRules.right()), drawn, strict=True):
        counts = [len(boltz_section(each, table, rules).bond_atom) for each in (entry, linked)]
        assert counts[1] - counts[0] == is_drawn


def first_atom(entry: EntryRecord, chain: int, symmetry: str) -> LinkEnd:
    """The end of a link at a chain's first atom."""
    residue = int(entry.chain_residue[chain])
    number = str(entry.residue_author[residue])
    return LinkEnd(
        asym=entry.chain_label[chain],
        seq="",
        component=str(entry.residue_name[residue]),
        atom=str(entry.atom_name[entry.residue_atom[residue]]),
        altloc="",
        author=(entry.chain_author[chain], number, str(entry.residue_insertion[residue])),
        symmetry=symmetry,
        residue=residue,
    )


PROTENIX = recordings("protenix/structure/*.npz")
SMALL_PROTENIX = some_recordings("protenix/structure/*.npz", 2)


@pytest.mark.parametrize("path", PROTENIX, ids=lambda path: path.stem)
def test_the_view_of_a_record_is_the_view_of_protenixs_own_tables(path: Path) -> None:
    pack = path.parent.parent.parent
    entry, table = record(pack, path.stem), components(pack)
    section = protenix_section(entry, table)
    sequences = canonical_sequences(entry, section, table)
    recorded = entry_view("protenix", pack, path.stem)
    names = alignments_of(recorded)
    canonical = read(path).meta["other"]["sequences"]
    assert {names[entity]: text for entity, text in sequences.items()} == {
        name: canonical[name] for name in set(names.values())
    }
    view = protenix_view(entry, section, protenix_molecules(pack), names, table)
    skipped = ("molecule_", "component_", "atom_reference", "bond_", "interface_chain")
    assert differing(view, recorded, skipped=skipped) == []
    assert sorted_bonds(view.bond_atom) == sorted_bonds(recorded.bond_atom)
    assert sorted_bonds(view.interface_chain) == sorted_bonds(recorded.interface_chain)
    position = recorded.molecule_position[0][recorded.atom_reference]
    mask = recorded.molecule_mask[recorded.atom_reference]
    own_position = view.molecule_position[0][view.atom_reference]
    np.testing.assert_array_equal(view.molecule_mask[view.atom_reference], mask)
    np.testing.assert_allclose(own_position[mask], position[mask], atol=1e-6)


def protenix_protein(path: Path) -> tuple[EntryRecord, ComponentTable, int]:
    """A recorded entry without links, the dictionary, and the entity of its first protein."""
    entry, table = record(path.parents[2], path.stem), components(path.parents[2])
    kinds = [entry.entities[row].polymer for row in entry.chain_entity]
    entity = int(entry.chain_entity[kinds.index("polypeptide(L)")])
    return dataclasses.replace(entry, links=()), table, entity


def test_a_chain_of_which_no_centre_is_resolved_is_removed_unless_mended() -> None:
    path = next(recording for recording in PROTENIX if recording.stem == "2x1f")
    entry, table, entity = protenix_protein(path)
    chains = np.flatnonzero(entry.chain_entity == entity)
    of_chain = np.isin(entry.residue_chain(), chains)[entry.atom_residue()]
    keep = ~of_chain | np.isin(entry.atom_name, ("N", "C", "O"))
    centreless = entry.taking(keep)
    removed = protenix_section(centreless, table)
    labels = {entry.chain_label[chain] for chain in chains.tolist()}
    assert labels.isdisjoint(entry.chain_label[asym] for asym in removed.chain_asym.tolist())
    assert "no centre atom is resolved" in {part.reason for part in removed.dropped}
    right = protenix_section(centreless, table, ProtenixRules.right())
    assert labels <= {entry.chain_label[asym] for asym in right.chain_asym.tolist()}
    with pytest.raises(EntryRefused, match="no centre atom"):
        protenix_section(centreless.taking(of_chain[keep]), table)


@pytest.mark.parametrize("path", SMALL_PROTENIX, ids=lambda path: path.stem)
def test_a_sequence_has_the_letter_of_a_residue_that_no_chain_has_any_more(path: Path) -> None:
    entry, table, entity = protenix_protein(path)
    of_entity = np.isin(entry.residue_chain(), np.flatnonzero(entry.chain_entity == entity))
    first = of_entity & (entry.residue_seq == 1)
    entities = list(entry.entities)
    whole = protenix_section(entry, table)
    ligand = next(part for part in table.values() if part.kind == ChainType.LIGAND)
    cap = "CAP"
    table = ComponentTable({**table, cap: dataclasses.replace(ligand, code=cap)})
    monomers = (cap, *entities[entity].monomers[1:])
    entities[entity] = dataclasses.replace(entities[entity], monomers=monomers)
    capped = dataclasses.replace(entry, entities=tuple(entities)).taking(
        ~first[entry.atom_residue()]
    )
    section = protenix_section(capped, table)
    (row, *_) = np.flatnonzero(capped.chain_entity[section.chain_asym] == entity).tolist()
    number = int(section.chain_entity[row])
    assert cap not in section.residue_name.tolist()
    sequence = canonical_sequences(entry, whole, table)[number]
    assert canonical_sequences(capped, section, table)[number] == "X" + sequence[1:]


def test_an_entry_of_waters_or_of_a_polymer_without_monomers_is_refused() -> None:
    entry, table, entity = protenix_protein(PROTENIX[0])
    water = dataclasses.replace(entry, residue_name=np.full(entry.num_residues, "HOH"))
    with pytest.raises(EntryRefused, match="no atoms are left"):
        protenix_section(water, table)
    entities = list(entry.entities)
    entities[entity] = dataclasses.replace(entities[entity], monomers=())
    entities.append(dataclasses.replace(entities[entity], monomers=("ALA",)))
    unknown = dataclasses.replace(entry, entities=tuple(entities))
    with pytest.raises(
        EntryRefused, match=f"entity {entities[entity].name} has no _entity_poly_seq"
    ):
        protenix_section(unknown, table)


def test_the_selenium_of_a_polymer_is_found_where_the_fault_is_mended() -> None:
    with_fault = mended = entries = 0
    for path in PROTENIX:
        pack = path.parent.parent.parent
        entry = record(pack, path.stem)
        if not (entry.atom_element == "SE").any():
            continue
        entries += 1
        for rules in (ProtenixRules(), ProtenixRules.right()):
            section = protenix_section(entry, components(pack), rules)
            sulfur = (section.atom_name == "SD") & (section.atom_row >= 0)
            count = int((entry.atom_element[section.atom_row[sulfur]] == "SE").sum())
            with_fault, mended = (
                (with_fault + count, mended)
                if rules.selenium_lost
                else (with_fault, mended + count)
            )
    assert with_fault == 0
    assert mended > 0 or not entries
