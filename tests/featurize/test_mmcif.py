"""mmCIF entries: those that OpenFold reads, those it refuses, and those read in spite of that."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gemmi
import numpy as np
import pytest
import yaml
from tests.conftest import golden_files
from tests.featurize.test_pdb import protein

from evofeed.base.errors import InputError, MmcifError
from evofeed.featurize import ChainSource, FeaturizeConfig, featurize_chain
from evofeed.featurize.structures.mmcif import parse_mmcif
from evofeed.featurize.structures.structure_files import parse_structure
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
    """An entry of two residues with these records of one atom: altloc, occupancy, x."""
    atoms = "".join(
        f"ATOM CA {alt} ALA A 1 1 A ? {occupancy} {x} 0 0 1\n" for alt, occupancy, x in rows
    )
    return (DATA / "tiny.cif").read_bytes() + atoms.encode()


RULES = yaml.safe_load((DATA / "mmcif_rules.yaml").read_text())


def entry_of(rule: dict[str, Any]) -> bytes:
    """The small entry of a rule."""
    text = small(rule.get("records", [(".", "1", "0.0")])).decode() + rule.get("more", "")
    for old, new in rule.get("changed", []):
        assert old in text
        text = text.replace(old, new)
    for name, atoms in rule.get("component", {}).items():
        head, row = text.replace("ALA", name).split("ATOM CA ")
        rows = ((atom, row.replace(" 0.0 0 0 ", f" {x} 0 0 ")) for atom, x in atoms.items())
        text = head + "".join(f"ATOM {atom} {fields}" for atom, fields in rows)
    return text.encode()


@pytest.mark.parametrize("name", RULES)
def test_a_rule_of_the_format_holds(name: str) -> None:
    rule = RULES[name]
    structure = parse_mmcif(entry_of(rule), file_id="t")
    chain = structure.chain("A")
    for field in ("resolution", "release_date"):
        assert getattr(structure, field) == rule.get(field, getattr(structure, field))
    read = [chain.sequence, int(chain.mask.sum())]
    assert read == rule.get("sequence_and_atoms", read)
    x = {atom: float(chain.positions[0, ATOM_ORDER[atom], 0]) for atom in rule.get("x", {})}
    assert x == rule.get("x", {})
    assert rule.get("note", "") in " ".join(chain.notes)
    if "openfold_error" in rule:
        with pytest.raises(MmcifError, match=rule["openfold_error"]):
            config = OPENFOLD.replace(require_atom_items=False)
            parse_mmcif(entry_of(rule), file_id="t", config=config)


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
        a, b = (
            parse_structure(data, name, config=config, is_distillation=True).chain("A")
            for data, name in ((pdb, "m.pdb"), (mmcif, "m.cif"))
        )
        assert a.notes[0] == b.notes[0] and "residues below confidence" in a.notes[0]
        assert a.confidence == b.confidence and len(a.confidence) == len(a.sequence)
        assert np.array_equal(a.mask, b.mask) and np.array_equal(a.positions, b.positions)
        assert 0 < a.mask.sum() < 20
    assert parse_structure(mmcif, "m.cif").chain("A").mask.sum() == 20
    theirs = parse_structure(mmcif, "m.cif", config=FeaturizeConfig(mask_mmcif=False),
                             is_distillation=True)  # fmt: skip
    assert theirs.chain("A").mask.sum() == 20


@pytest.mark.parametrize(("name", "residues"), [("pLDDT", 1), ("QMEAN", 2)])
def test_the_table_of_confidence_is_used_before_b_factors(
    name: str, residues: int, tmp_path: Path
) -> None:
    _, mmcif = prediction(tmp_path, [90, 90, 10])
    table = (DATA / "confidence.cif").read_text().replace("local pLDDT", f"local {name}")
    data = mmcif.replace(b"Axp", b"A") + table.encode()
    chain = parse_mmcif(data, file_id="t", is_distillation=True).chain("A")
    assert chain.mask.any(-1).sum() == residues


def test_a_prediction_without_confident_residues_has_a_note_with_the_reason() -> None:
    data = small([(".", "1.0", "1.0")])
    chain = parse_mmcif(data, file_id="t", is_distillation=True).chain("A")
    assert chain.mask.sum() == 1 and "no residue is masked" in chain.notes[0]
    text = protein("A", "ALA GLY", b=0.9).encode()
    chain = parse_structure(text, "m.pdb", is_distillation=True).chain("A")
    assert chain.mask.sum() == 0 and "pLDDT goes to 100" in chain.notes[1]
