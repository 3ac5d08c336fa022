"""mmCIF entries: what OpenFold reads, what it refuses, and what we take all the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gemmi
import numpy as np
import pytest
from tests.conftest import golden_files
from tests.featurize.test_pdb import protein

from evofeed.base.errors import InputError, MmcifError
from evofeed.featurize import ChainSource, FeaturizeConfig, featurize_chain
from evofeed.featurize.structures.mmcif import parse_mmcif
from evofeed.featurize.structures.structure import Structure
from evofeed.featurize.structures.structure_places import parse_structure
from evofeed.protein.residues import ATOM_ORDER

PARSED: dict[str, Any] = {
    name: entry
    for path in golden_files("data/golden/mmcif/parse.json")
    for name, entry in json.loads(path.read_text()).items()
}
FOLDER = golden_files("data/inputs/mmcif")
OPENFOLD = FeaturizeConfig.openfold()
DATA = Path(__file__).with_name("data")


def read(name: str) -> bytes:
    return (FOLDER[0] / f"{name}.cif").read_bytes()


@pytest.mark.parametrize("name", [n for n, e in PARSED.items() if not e["errors"]])
def test_headers_sequences_and_missing_residues_equal_openfolds(name: str, golden: Path) -> None:
    entry = PARSED[name]
    structure = parse_mmcif(read(name), file_id=name, config=OPENFOLD)
    header = entry["header"]
    assert structure.method == header["structure_method"]
    assert structure.release_date == header.get("release_date", "")
    assert structure.resolution == header["resolution"]
    assert list(structure.sequences.items()) == list(entry["chain_to_seqres"].items())
    for chain_id in structure.sequences:
        chain = structure.chain(chain_id)
        assert np.flatnonzero(~chain.observed).tolist() == entry["missing"][chain_id]


@pytest.mark.parametrize("name", [n for n, e in PARSED.items() if e["errors"]])
def test_what_openfold_cannot_parse_is_refused_with_a_reason(name: str, golden: Path) -> None:
    with pytest.raises(MmcifError) as error:
        parse_mmcif(read(name), file_id=name, path=f"{name}.cif", config=OPENFOLD)
    assert PARSED[name]["errors"][0].strip("'") in str(error.value)


BARE = [n for n, e in PARSED.items() if e["errors"] and "_entry.id" in e["errors"][0]]


@pytest.mark.parametrize("name", BARE)
def test_an_undated_entry_without_id_is_taken_by_default(name: str, golden: Path) -> None:
    data = read(name)
    if re.search(rb"(?m)^(ATOM|HETATM)\s.*\sCA\s+(\S\s+)?(?!CA\b)[A-Z]{3}\s", data):
        sequences = parse_mmcif(data, file_id=name).sequences
        assert sequences and all(sequences.values())
    else:
        with pytest.raises(MmcifError, match="No protein"):
            parse_mmcif(data, file_id=name)


def test_a_file_of_atoms_alone_has_their_sequence() -> None:
    data = small([(".", "1", "0.0")])
    row = data[data.rindex(b"ATOM") :]
    bare = b"data_x\n" + data[data.index(b"loop_\n_atom_site") :]
    bare += row.replace(b"ALA A 1 1", b"TRP A 4 4")
    chain = parse_mmcif(bare, file_id="x").chain("A")
    assert chain.sequence == "AW" and chain.residue_index is not None
    assert chain.residue_index.tolist() == [0, 3]
    assert "1 gaps in the numbers (2 after 1)" in " ".join(chain.notes)
    with pytest.raises(MmcifError, match="No protein"):
        config = FeaturizeConfig(sequence_from_atoms=False)
        parse_mmcif(bare, file_id="x", config=config)


UNDATED = [
    (name, chain)
    for name, entry in PARSED.items()
    for chain in entry.get("make_mmcif_features_error", {})
]


@pytest.mark.parametrize(("name", "chain"), UNDATED)
def test_chains_without_a_date_fail_as_in_openfold_and_pass_by_default(
    name: str, chain: str, golden: Path
) -> None:
    assert "release_date" in PARSED[name]["make_mmcif_features_error"][chain]
    source = ChainSource(f"{name}_{chain}", structure=str(FOLDER[0] / f"{name}.cif"))
    with pytest.raises(InputError, match="release date"):
        featurize_chain(source, OPENFOLD)
    assert featurize_chain(source).release_date == ""


def test_a_position_with_two_residue_types_counts_once_by_default() -> None:
    data = small([(".", "1", "1.0")]).replace(b"\n1 2 GLY", b"\n1 1 SER\n1 2 GLY")
    row = data[data.rindex(b"ATOM") :]
    data += row.replace(b"ALA", b"SER").replace(b"1.0 ", b"2.0 ")
    ours = parse_mmcif(data, file_id="t")
    theirs = parse_mmcif(data, file_id="t", config=OPENFOLD.replace(require_atom_items=False))
    assert (ours.sequences["A"], theirs.sequences["A"]) == ("AG", "ASG")
    # The letter and the atoms agree: the first type's, not the last's.
    assert ours.chain("A").positions[0, 1, 0] == 1.0
    assert theirs.chain("A").positions[0, 1, 0] == 2.0


def test_items_that_only_openfold_needs_are_missed_by_it_alone() -> None:
    data = small([(".", "1", "0.0")])
    assert parse_mmcif(data, file_id="t").chain("A").mask.sum() == 1
    with pytest.raises(MmcifError, match=r"_atom_site\.id is missing"):
        parse_mmcif(data, file_id="t", config=OPENFOLD)


def small(rows: list[tuple[str, str, str]]) -> bytes:
    """An entry of two residues with these places of one atom: label, occupancy, x."""
    atoms = "".join(
        f"ATOM CA {alt} ALA A 1 1 A ? {occupancy} {x} 0 0 1\n" for alt, occupancy, x in rows
    )
    return (DATA / "tiny.cif").read_bytes() + atoms.encode()


ONE = small([(".", "1", "0.0")])
CAPITALS = ONE.replace(b"eptide linking", b"EPTIDE LINKING").replace(b"-p", b"-P")
CAPITALS = CAPITALS.replace(b"'pE", b"'PE")
UNPLACED = ONE.replace(b" ALA A 1 1 A ", b" ALA . . 1 A ")
STRAND = b"_entity_poly.entity_id 1\n_entity_poly.pdbx_strand_id A\nloop_\n_chem_comp.id\n"
DATES = b"loop_\n_pdbx_audit_revision_history.ordinal\n_pdbx_audit_revision_history.revision_date\n"


def one_residue(component: str, **atoms: float) -> bytes:
    data = ONE.replace(b"ALA", component.encode())
    row = data[data.rindex(b"ATOM CA") :].decode()
    rows = [
        row.replace(" CA ", f" {name} ").replace(" 0.0 0 0 ", f" {x} 0 0 ")
        for name, x in atoms.items()
    ]
    return data[: data.rindex(b"ATOM CA")] + "".join(rows).encode()


def place(atom: str) -> Callable[[Structure], float]:
    return lambda structure: float(structure.chain("A").positions[0, ATOM_ORDER[atom], 0])


def seen(structure: Structure) -> tuple[str, int]:
    chain = structure.chain("A")
    return chain.sequence, int(chain.mask.sum())


def noted(text: str) -> Callable[[Structure], bool]:
    return lambda structure: text in " ".join(structure.chain("A").notes)


RULES: dict[str, tuple[bytes, Callable[[Structure], Any], Any]] = {
    "resolution, refined": (
        ONE + b"_refine.ls_d_res_high 1.5\n_em_3d_reconstruction.resolution 3\n",
        lambda s: s.resolution, 1.5),
    "resolution, of a map": (
        ONE + b"_refine.ls_d_res_high ?\n_em_3d_reconstruction.resolution 3\n",
        lambda s: s.resolution, 3.0),
    "resolution, of reflections": (
        ONE + b"_reflns.d_resolution_high 2.5\n_em_3d_reconstruction.resolution .\n",
        lambda s: s.resolution, 2.5),
    "no resolution": (ONE, lambda s: s.resolution, 0.0),
    "released at the first revision": (
        ONE + DATES + b"1 2011-07-13\n2 1998-04-08\n", lambda s: s.release_date, "1998-04-08"),
    "selenium in place of sulphur": (one_residue("MSE", CA=0.0, SE=4.0), place("SD"), 4.0),
    "a methionine": (one_residue("MSE", CA=0.0, SE=4.0), seen, ("MG", 2)),
    "selenocysteine": (one_residue("SEC", CA=0.0, SE=4.0), seen, ("XG", 1)),
    "NH1 is nearer": (one_residue("ARG", CD=1.0, NH1=5.0, NH2=3.0), place("NH1"), 3.0),
    "NH1 is nearer already": (one_residue("ARG", CD=1.0, NH1=3.0, NH2=5.0), place("NH1"), 3.0),
    "NH2 is the other": (one_residue("ARG", CD=1.0, NH1=5.0, NH2=3.0), place("NH2"), 5.0),
    "the fullest altloc, the first of equals": (
        small([("A", "0.40", "1"), ("B", "0.60", "2"), ("C", "0.60", "3")]), place("CA"), 2.0),
    "an unlabelled atom stays": (
        small([(".", "0.1", "1.0"), (".", "0.9", "2.0")]), place("CA"), 1.0),
    "component types in capitals": (CAPITALS, lambda s: list(s.sequences), ["A"]),
    "a sequence of an unknown chain": (UNPLACED, seen, ("A", 1)),
    "it says so": (UNPLACED, noted("the sequence is what is seen"), True),
    "its chain known by strand": (
        UNPLACED.replace(b"loop_\n_chem_comp.id\n", STRAND), seen, ("AG", 1)),
    "a sequence that is not the atoms'": (
        ONE.replace(b" ALA A 1 1 A ", b" TRP A ? 1 A "), seen, ("W", 1)),
    "and says so": (
        ONE.replace(b" ALA A 1 1 A ", b" TRP A ? 1 A "),
        noted("_entity_poly_seq has other residues than the 1 seen"), True),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_of_the_format_holds(rule: str) -> None:
    data, value, wanted = RULES[rule]
    assert value(parse_mmcif(data, file_id="t")) == wanted
    if data is CAPITALS:
        with pytest.raises(MmcifError, match="No protein"):
            parse_mmcif(data, file_id="t", config=OPENFOLD.replace(require_atom_items=False))


@pytest.mark.parametrize("value", ["nan", "NaN", ".", "?"])
def test_an_atom_without_coordinates_is_absent(value: str) -> None:
    data = small([(".", "1.0", "1.0"), (".", "1.0", value)])
    with_cb = data.replace(f" {value} 0 0 1".encode(), f" {value} 0 0 1\n".encode())
    data = with_cb[::-1].replace(b" AC ", b" BC ", 1)[::-1]  # the last CA is a CB
    chain = parse_mmcif(data, file_id="t").chain("A")
    assert chain.mask.sum() == 1 and chain.notes == ("1 atoms without coordinates",)
    with pytest.raises(MmcifError):
        parse_mmcif(data, file_id="t", config=OPENFOLD)


# predictions


def prediction(folder: Path, confidences: list[float]) -> tuple[bytes, bytes]:
    """A model as AlphaFold's database has it, in both formats."""
    text = "".join(
        protein("A", "ALA", number, b=value) for number, value in enumerate(confidences, 1)
    )
    structure = gemmi.read_pdb_string(text)
    structure.setup_entities()
    structure.assign_label_seq_id()
    document = structure.make_mmcif_document()
    return text.encode(), document.as_string().encode()


def test_a_prediction_is_masked_alike_in_both_formats(tmp_path: Path) -> None:
    pdb, mmcif = prediction(tmp_path, [90, 50, 30, 50.01, 70])
    for config in (FeaturizeConfig(), FeaturizeConfig(confidence_threshold=69.0)):
        one, two = (
            parse_structure(data, name, config=config, is_distillation=True).chain("A")
            for data, name in ((pdb, "m.pdb"), (mmcif, "m.cif"))
        )
        assert one.notes[0] == two.notes[0] and "residues below confidence" in one.notes[0]
        assert one.confidence == two.confidence and len(one.confidence) == len(one.sequence)
        assert np.array_equal(one.mask, two.mask) and np.array_equal(one.positions, two.positions)
        assert 0 < one.mask.sum() < 20
    assert parse_structure(mmcif, "m.cif").chain("A").mask.sum() == 20
    theirs = parse_structure(mmcif, "m.cif", config=FeaturizeConfig(mask_mmcif=False),
                             is_distillation=True)  # fmt: skip
    assert theirs.chain("A").mask.sum() == 20


@pytest.mark.parametrize(("name", "kept"), [("pLDDT", 1), ("QMEAN", 2)])
def test_a_models_own_table_of_confidence_comes_before_b_factors(
    name: str, kept: int, tmp_path: Path
) -> None:
    _, mmcif = prediction(tmp_path, [90, 90, 10])
    table = (DATA / "confidence.cif").read_text().replace("local pLDDT", f"local {name}")
    data = mmcif.replace(b"Axp", b"A") + table.encode()
    chain = parse_mmcif(data, file_id="t", is_distillation=True).chain("A")
    assert chain.mask.any(-1).sum() == kept


def test_a_prediction_that_is_not_sure_of_anything_says_why() -> None:
    data = small([(".", "1.0", "1.0")])
    chain = parse_mmcif(data, file_id="t", is_distillation=True).chain("A")
    assert chain.mask.sum() == 1 and "no residue is masked" in chain.notes[0]
    text = protein("A", "ALA GLY", b=0.9).encode()
    chain = parse_structure(text, "m.pdb", is_distillation=True).chain("A")
    assert chain.mask.sum() == 0 and "pLDDT goes to 100" in chain.notes[1]
