"""Complexes of damaged input: omissions are listed with their reasons, the rest is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.conftest import evofeed
from tests.featurize.test_assemblies import QUERY_A, QUERY_B, fasta_folder, featurized
from tests.featurize.test_readers import write

from evofeed.base.errors import InputError
from evofeed.featurize import assembly_sources, discover, featurize_assembly, featurize_chain
from evofeed.featurize.job.run import run_job
from evofeed.featurize.structures.structure_files import parse_structure
from evofeed.protein.residues import RESTYPES
from evofeed.protein.structure_text import Structure, to_pdb
from evofeed.store import Dataset
from evofeed.synth.mmcif import Chain, Entry, mmcif

NUCLEIC = Path(__file__).with_name("data").joinpath("nucleic.cif").read_text()


def chain(name: str, sequence: str, shift: float = 0.0, missing: tuple[int, ...] = ()) -> Chain:
    """A chain with coordinates that no other chain has."""
    length = len(sequence)
    atoms = np.arange(length * 14 * 3).reshape(length, 14, 3) % 97 / 10.0 + shift
    resolved = np.ones(length, bool)
    resolved[list(missing)] = False
    aatype = np.array([RESTYPES.index(letter) for letter in sequence])
    return Chain(
        author_id=name, aatype=aatype, atoms=atoms, resolved=resolved, first_number=5,
        selenium=False,
    )  # fmt: skip


def entry(folder: Path, name: str, chains: list[Chain], *aligned: str, extra: str = "") -> str:
    """An entry's mmCIF file, and alignments of some of its chains; returns its text."""
    text = mmcif(
        Entry(
            entry_id=name, method="X-RAY DIFFRACTION", resolution=2.0,
            release_date="2001-01-01", num_models=1, chains=tuple(chains),
        )
    )  # fmt: skip
    write(folder, {f"mmcif/{name}.cif": text + extra})
    letters = {c.author_id: "".join(RESTYPES[code] for code in c.aatype) for c in chains}
    for author in aligned:
        rows = {f"{name}_{author}/uniref90_hits.a3m": f">q\n{letters[author]}\n"}
        write(folder / "alignments", rows)
    return text


def as_pdb(folder: Path, name: str, extra: str = "") -> None:
    """Turns an entry into a PDB file without SEQRES."""
    path = folder / "mmcif" / f"{name}.cif"
    structure = parse_structure(path.read_bytes(), path.name)
    chains = [structure.chain(author) for author in structure.sequences]
    letters = "".join(c.sequence for c in chains)
    text = to_pdb(
        Structure(
            name=name,
            aatype=np.array([RESTYPES.index(letter) for letter in letters]),
            residue_index=np.concatenate([np.arange(len(c.sequence)) for c in chains]),
            positions=np.concatenate([c.positions for c in chains]),
            mask=np.concatenate([c.mask for c in chains]),
            confidence=np.zeros(len(letters)),
            chain=np.repeat(np.arange(len(chains)) + 1, [len(c.sequence) for c in chains]),
            chain_names=tuple(structure.sequences),
        )
    )
    path.with_suffix(".pdb").write_text(extra + text)
    path.unlink()


def test_nucleic_acids_are_listed_and_proteins_keep_names_and_numbers(tmp_path: Path) -> None:
    chains = [chain("A", QUERY_A), chain("C", QUERY_B, shift=4.0)]
    entry(tmp_path, "1dna", chains, "A", "C", extra=NUCLEIC)
    record = featurized(tmp_path, problems=[])
    assert record.copies == (("A",), ("C",)) and record.stoichiometry == "AB"
    assert "left out: chain D (polydeoxyribonucleotide)" in record.dropped
    assert "left out: chain R, S (polyribonucleotide)" in record.dropped
    assert set(record.asym_id()) == {1, 2}
    assert [c.residue_index.tolist() for c in record.chains] == [list(range(10))] * 2
    assert record.all_atom_positions is not None
    ca = record.all_atom_positions[:, 1]
    assert ca == pytest.approx(np.concatenate([c.atoms[:, 1] for c in chains]), abs=1e-3)
    row = "ATOM  {0:5d}  P    DA D{0:4d}    {0:8.3f}{0:8.3f}{0:8.3f}  1.00  0.00           P\n"
    as_pdb(tmp_path, "1dna", "".join(map(row.format, range(1, 4))))
    record = featurized(tmp_path, problems=[])
    assert record.copies == (("A",), ("C",)) and record.num_interface > 0
    (left_out,) = [note for note in record.dropped if "chain D" in note]
    assert left_out.startswith("left out: chain D (")


def test_copies_that_differ_where_a_file_has_no_full_sequence_are_noted(tmp_path: Path) -> None:
    copies = [chain("A", QUERY_A), chain("B", QUERY_A, missing=(0, 1)), chain("C", QUERY_B)]
    entry(tmp_path, "1gap", copies, "A", "C")
    as_pdb(tmp_path, "1gap")
    write(tmp_path, {"alignments/1gap_B/uniref90_hits.a3m": f">q\n{QUERY_A[2:]}\n"})
    record = featurized(tmp_path, problems=[])
    assert record.stoichiometry == "ABC"
    (note,) = [note for note in record.dropped if "another sequence" in note]
    assert note == (
        "chain B has 8 of the 10 residues of chain A and counts as another sequence: "
        "if they are copies, give a file with the full sequence"
    )


def test_copies_with_other_missing_residues_are_one_entity_with_their_own(tmp_path: Path) -> None:
    copies = [
        chain("A", QUERY_A, missing=(0, 1)),
        chain("B", QUERY_A, shift=3.0, missing=(8, 9)),
        chain("C", QUERY_A, shift=6.0, missing=tuple(range(1, 10))),
    ]
    entry(tmp_path, "1gap", copies, "A")
    record = featurized(tmp_path, problems=[])
    assert record.stoichiometry == "A3" and record.copies == (("A", "B", "C"),)
    assert record.all_atom_mask is not None and record.all_atom_positions is not None
    observed = record.all_atom_mask[:, 1].reshape(3, 10) > 0
    assert np.array_equal(observed, [copy.resolved for copy in copies])
    assert record.all_atom_positions[10, 1] == pytest.approx(copies[1].atoms[0, 1], abs=1e-3)


def test_an_entry_of_more_chains_than_a_capsid_may_have_is_refused(tmp_path: Path) -> None:
    entry(tmp_path, "1cap", [chain(f"A{n}", "MK") for n in range(513)], "A0")
    with pytest.raises(InputError, match=r"^1cap: 513 chains, more than 512: left out"):
        featurized(tmp_path, problems=[])


def test_another_copys_alignment_is_used_where_one_is_broken(tmp_path: Path) -> None:
    entry(tmp_path, "1abc", [chain("A", QUERY_A), chain("B", QUERY_A)], "A", "B")
    sources = discover(tmp_path)
    (assembly,) = assembly_sources(sources)
    records = {"1abc_B": featurize_chain(sources[1])}
    record = featurize_assembly(assembly, records.__getitem__)
    assert record.chains[0].chain_id == "1abc_B" and record.copies == (("A", "B"),)
    note = record.dropped[0]
    assert "1abc_A has no record" in note and "1abc_B has the same" in note


def test_chains_without_any_alignment_are_paired_by_their_queries_alone(tmp_path: Path) -> None:
    entry(tmp_path, "1abc", [chain("A", QUERY_A), chain("B", QUERY_B)])
    record = featurized(tmp_path, problems=[])
    assert [rows.num_alignments if rows else 0 for rows in record.pairing] == [1, 1]
    assert all("only the query is paired" in rows.dropped[0] for rows in record.pairing if rows)
    assert all("the MSA is the query alone" in " ".join(c.dropped) for c in record.chains)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (">dna\nGATTACAGATTACA\n", "no protein, left out: dna"),
        (">bad\n\n", "bad is broken: a header without residues"),
        (f">two\n{QUERY_A}\n", "two is broken: there twice"),
    ],
)
def test_a_fasta_with_a_broken_record_is_not_a_complex_and_one_with_a_dna_notes_it(
    tmp_path: Path, text: str, want: str
) -> None:
    path = fasta_folder(tmp_path)
    path.write_text(path.read_text() + text)
    if "left out" in want:
        record = featurized(path, str(path), [])
        assert record.num_chains == 3 and want in record.dropped[0]
    else:
        with pytest.raises(InputError, match=f"^pair: {want}"):
            featurized(path, str(path), [])


@pytest.mark.system
def test_good_complexes_are_made_in_spite_of_bad_ones_and_all_are_counted(
    tmp_path: Path, inside: None
) -> None:
    raw, data = tmp_path / "raw", str(tmp_path / "data")
    pair = [chain("A", QUERY_A), chain("B", QUERY_B)]
    entry(raw, "1ok", pair, "A", "B")
    entry(raw, "2bad", pair, "A", "B")
    entry(raw, "3half", pair, "A")
    entry(raw, "4torn", pair, "A", "B")
    entry(raw, "5lone", pair[:1], "A")
    (raw / "alignments" / "2bad_B" / "uniref90_hits.a3m").write_text(">q\nMKV\n")
    (raw / "alignments" / "4torn_A" / "uniprot_hits.sto").write_text("# STOCKHOLM 1.0\nq MK\n//\n")
    run_job(str(raw), data, max_broken=1.0)
    report = evofeed("assemblies", raw, data, "--json").json
    assert report["assemblies"] == 1 and report["alone"] == 1 and report["faults"] == []
    reasons = {item["assembly_id"]: item["reason"] for item in report["dropped"]}
    assert list(reasons) == ["2bad", "3half", "4torn"]
    assert "2bad_B" in reasons["2bad"] and "3 columns" in reasons["2bad"]
    assert "no alignment of chain B" in reasons["3half"]
    assert "uniprot_hits.sto" in reasons["4torn"] and "2 columns" in reasons["4torn"]
    dataset = Dataset.open(data)
    assert list(dataset.assemblies) == ["1ok"]
    assert dataset.manifest.config["assemblies"]["dropped"] == report["dropped"]
