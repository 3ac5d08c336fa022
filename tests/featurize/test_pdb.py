"""Legacy PDB files: of the wwPDB, of other programs, and as OpenFold reads them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from evofeed.base.errors import MmcifError
from evofeed.featurize import ChainSource, FeaturizeConfig, discover, featurize_chain
from evofeed.featurize.structures.pdb import parse_pdb
from evofeed.featurize.structures.pdb_text import hybrid36
from evofeed.featurize.structures.seqres import place_on_sequence
from evofeed.featurize.structures.structure import Structure
from evofeed.protein.residues import ATOM_ORDER

OPENFOLD = FeaturizeConfig.openfold()
LAX = OPENFOLD.replace(strict_pdb=False)


def line(
    atom: str,
    residue: str,
    chain: str,
    number: str,
    *,
    hetero: bool = False,
    x: str = "1.000",
    b: float = 90,
    altloc: str = " ",
) -> str:
    """One atom record; `number` with its insertion code or a blank."""
    kind = "HETATM" if hetero else "ATOM"
    return (
        f"{kind:6}    1 {' ' + atom:4}{altloc}{residue:3}{chain:>2}{number:>5}   "
        f"{x:>8}   2.000   3.000  1.00{b:6.2f}           {atom[0]}\n"
    )


def residue(name: str, chain: str, number: str, **more: object) -> str:
    return "".join(line(atom, name, chain, number, **more) for atom in ("N", "CA", "C", "O"))  # type: ignore[arg-type]


def protein(chain: str = "A", names: str = "ALA GLY SER", start: int = 1, **more: object) -> str:
    numbers = range(start, start + len(names.split()))
    return "".join(
        residue(name, chain, f"{number} ", **more)
        for name, number in zip(names.split(), numbers, strict=True)
    )


def water(chain: str, number: int) -> str:
    return line("O", "HOH", chain, f"{number} ", hetero=True)


def parsed(text: str, **more: object) -> Structure:
    return parse_pdb(text.encode(), file_id="t", **more)  # type: ignore[arg-type]


# chains


def test_waters_ligands_and_nucleotides_are_not_residues_and_are_listed(tmp_path: Path) -> None:
    text = protein("A") + "TER\n" + residue("DA", "B", "1 ") + "TER\n"
    text += line("FE", "HEM", "A", "200 ", hetero=True) + water("A", 301) + water("A", 302)
    text += water("W", 1)
    (tmp_path / "1abc.pdb").write_text(text)
    (source,) = discover(tmp_path)
    record = featurize_chain(source)
    assert (source.chain_id, record.sequence) == ("1abc_A", "AGS")
    dropped = "; ".join(record.dropped)
    assert "2 HOH, 1 HEM: no residues of the chain" in dropped
    assert "chain B (1 DA), W (1 HOH): no proteins" in dropped
    theirs = parsed(text, config=LAX)
    assert theirs.sequences == {"A": "AGSXX", "B": "X", "W": "X"}


def test_the_error_for_a_file_without_protein_lists_its_residues() -> None:
    with pytest.raises(MmcifError, match=r"no protein in it, only chain W \(2 HOH\)"):
        parsed(water("W", 1) + water("W", 2))


SEQRES = "SEQRES   1 A    7  MET ALA GLY SER ALA GLY SER\n"
MISSING = "".join(
    f"REMARK 465     {name} A {number:5}\n"
    for name, number in (("MET", 401), ("ALA", 402), ("GLY", 403), ("SER", 404))
)
LIGAND = residue("GLU", "A", "301 ", hetero=True)
OBSERVED = yaml.safe_load(Path(__file__).with_name("data").joinpath("observed.yaml").read_text())


def records(residues: str) -> str:
    """Records of the residues of chain A in the form of `observed.yaml`."""
    text = ""
    for name, *words in (item.split() for item in residues.split(", ")):
        if name == "TER":
            text += "TER\n"
            continue
        more: dict[str, Any] = dict(word.split("=") for word in words if "=" in word)
        atoms = more.pop("atom", "N CA C O").split()
        more |= {"hetero": "HETATM" in words}
        text += "".join(line(atom, name, "A", f"{words[0]} ", **more) for atom in atoms)
    return text


@pytest.mark.parametrize("case", OBSERVED)
def test_observed_residues_are_placed_on_the_sequence(case: str) -> None:
    row = OBSERVED[case]
    head = row.get("head", "")
    text = MISSING * ("MISSING" in head) + SEQRES * ("SEQRES" in head) + records(row["residues"])
    chain, sequence, positions = parsed(text).chain("A"), row["sequence"], row["positions"]
    assert chain.sequence == sequence and row.get("note", "") in " ".join(chain.notes)
    assert np.flatnonzero(chain.mask.any(-1)).tolist() == positions
    if head and sequence == "MAGSAGS":
        assert np.flatnonzero(chain.observed).tolist() == positions
    if "index" in row:
        index = None if chain.residue_index is None else chain.residue_index.tolist()
        assert index == row["index"]


def segment(name: str) -> str:
    return "".join(f"{text[:72]:72}{name:4}{text[76:]}\n" for text in protein(" ").splitlines())


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (protein("AA") + protein("BA") + protein("A"), ["AA", "BA", "A"]),
        (protein("A") + line("OH2", "TIP", "3A", "99 "), ["A"]),
        (segment("A") + segment("B"), ["A", "B"]),
    ],
    ids=["two letters", "names of four", "segments"],
)
def test_chains_are_named_as_programs_name_them(text: str, names: list[str]) -> None:
    assert list(parsed(text).sequences.items()) == [(name, "AGS") for name in names]


def test_a_ligand_after_a_chain_is_listed_and_numbers_continue_after_9999() -> None:
    others = parsed(protein() + LIGAND).others
    assert [(m.component, m.chain, m.count) for m in others] == [("GLU", "A", 1)]
    modified = residue("MSE", "A", "1 ") + line("SE", "MSE", "A", "1 ", hetero=True, x="7.000")
    assert parsed(modified).chain("A").positions[0, ATOM_ORDER["SD"], 0] == 7.0
    assert [hybrid36(t) for t in ("9999", "A000", "ZZZZ", "a000", "zzzz", "A0-0", "")] == [
        *(9999, 10_000, 1_223_055, 1_223_056, 2_436_111, None, None)
    ]


@given(st.data())
@settings(max_examples=50)
def test_observed_residues_are_placed_by_their_numbers(data: st.DataObject) -> None:
    names = st.sampled_from(["ALA", "GLY", "SER"])
    sequence = data.draw(st.lists(names, min_size=1, max_size=40))
    positions = sorted(data.draw(st.sets(st.integers(0, len(sequence) - 1), min_size=1)))
    observed = [(position + 1, " ", sequence[position]) for position in positions]
    placed = place_on_sequence(observed, sequence)
    assert placed is not None and placed.tolist() == positions
    offset = data.draw(st.integers(-50, 900))
    shifted = [(number + offset, " ", name) for number, _, name in observed]
    missing = [(i + 1 + offset, " ", n) for i, n in enumerate(sequence) if i not in positions]
    placed = place_on_sequence(shifted, sequence, missing)
    assert placed is not None and placed.tolist() == positions


@given(st.data())
@settings(max_examples=50)
def test_residues_with_odd_numbers_keep_their_order_and_their_names(data: st.DataObject) -> None:
    names = st.sampled_from(["ALA", "GLY", "SER", "TRP"])
    sequence = data.draw(st.lists(names, min_size=1, max_size=30))
    indices = sorted(data.draw(st.sets(st.integers(0, len(sequence) - 1), min_size=1)))
    size = len(indices)
    numbers = data.draw(st.lists(st.integers(-5, 60), min_size=size, max_size=size))
    observed = [(number, " ", sequence[i]) for number, i in zip(numbers, indices, strict=True)]
    positions = place_on_sequence(observed, sequence)
    assert positions is not None
    placed = positions[positions >= 0]
    assert (np.diff(placed) > 0).all() and placed.max(initial=0) < len(sequence)
    pairs = zip(positions, observed, strict=True)
    same = [sequence[i] == name for i, (_, _, name) in pairs if i >= 0]
    assert sum(same) > len(same) / 2


# the header


def test_dates_method_and_resolution_are_read(tmp_path: Path) -> None:
    header = "HEADER    HYDROLASE                               17-JUL-84   1ABC\n"
    header += "EXPDTA    X-RAY DIFFRACTION; NEUTRON DIFFRACTION\n"
    header += "REVDAT   2   24-FEB-09 1ABC    1       VERSN\nREVDAT   1   19-OCT-01 1ABC    0\n"
    header += "REMARK   2 RESOLUTION.    1.74 ANGSTROMS.\n"
    structure = parsed(header + protein())
    assert structure.method == "x-ray diffraction,neutron diffraction"
    assert (structure.release_date, structure.resolution) == ("2001-10-19", 1.74)
    assert not structure.is_deposition
    undated = re.sub("REVDAT.*\n", "", header).replace("1.74 ANGSTROMS", "NOT APPLICABLE")
    structure = parsed(undated + protein())
    assert (structure.release_date, structure.resolution) == ("1984-07-17", 0.0)
    assert structure.is_deposition
    theirs = parsed(header + protein(), config=OPENFOLD)
    assert (theirs.method, theirs.release_date, theirs.resolution) == ("", "", 0.0)


# files of other programs


@pytest.mark.parametrize(("taken", "name"), [("", "A"), ("A", "B"), ("B", "A")])
def test_a_blank_chain_id_is_the_first_free_letter(taken: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "T1026.pdb").write_text(protein(" ") + (protein(taken) if taken else ""))
    records = {s.chain_id: featurize_chain(s) for s in discover(tmp_path)}
    assert set(records) == {f"T1026_{c}" for c in (name, taken) if c}
    assert f"{name!r} is the first free one" in "; ".join(records[f"T1026_{name}"].dropped)
    assert featurize_chain(
        ChainSource(f"T1026_{name}", structure=str(tmp_path / "T1026.pdb"))
    ).sequence


# rules that no recorded chain may need


def pdb(*atoms: tuple[str, str, str, str, float]) -> bytes:
    """Atom, residue, chain, number with insertion code, B factor."""
    rows = [line(*fields, x=f"{i:.3f}", b=b) for i, (*fields, b) in enumerate(atoms, 1)]
    return "".join(rows).encode()


def test_one_confident_atom_keeps_a_predicted_residue() -> None:
    data = pdb(
        *[("CA", "ALA", "A", "1 ", 50.0), ("C", "ALA", "A", "1 ", 50.1)],
        *[("CA", "ALA", "A", "2 ", 50.0), ("C", "ALA", "A", "2 ", 10.0)],
    )
    chain = parse_pdb(data, file_id="t", is_distillation=True).chain("A")
    assert (chain.sequence, chain.mask.sum(-1).tolist()) == ("AA", [2, 0])
    assert chain.notes == (
        "1 residues below confidence",
        "no full sequence in the file: the sequence is what is seen",
    )
    assert parse_pdb(data, file_id="t").chain("A").mask.sum() == 4


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (pdb(("CA", "ALA", "A", "1 ", 9), ("CA", "GLY", "A", "1B", 9)), "insertion code"),
        (pdb(("CA", "ALA", "b", "1 ", 9)), "chain id"),
        (
            b"MODEL        1\n" + pdb(("CA", "ALA", "A", "1 ", 9)) + b"ENDMDL\nMODEL        2\n"
            + pdb(("CA", "ALA", "A", "1 ", 9)) + b"ENDMDL\n",
            "2 models",
        ),
    ],
)  # fmt: skip
def test_pdb_files_that_openfold_refuses_are_read(data: bytes, why: str) -> None:
    (sequence,) = parse_pdb(data, file_id="t").sequences.values()
    assert sequence in ("A", "AG")
    with pytest.raises(MmcifError, match=why):
        parse_pdb(data, file_id="t", config=OPENFOLD)
