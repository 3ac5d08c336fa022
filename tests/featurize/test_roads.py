"""Inputs of other programs become the chains that are in them, or say what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from evofeed.errors import InputError
from evofeed.featurize import check_input, discover, featurize_chain
from evofeed.featurize.job.driver import run_job

A, B = "ACDEF", "GHIKLM"
COMPLEX = (
    f"#5,6\t1,1\n>101\t102\n{A}{B}\n"
    ">UniRef100_A\t90\tUniRef100_B\t80\nACDwwEWGHIKLW\n"
    f">101\n{A}------\n>a1\t7\nAaC-EF------\n"
    f">102\n-----{B}\n>b1\n-----GHxxIKL-\n>b2\n-----GH-KL-\n"
)


def rows(text: str) -> list[str]:
    return text.split("\n")[1::2]


def test_a_colabfold_complex_is_taken_apart(tmp_path: Path) -> None:
    (tmp_path / "cplx.a3m").write_text(COMPLEX)
    (tmp_path / "mono.a3m").write_text(f"#5\t1\n>101\n{A}\n>x\nAC-EF\n")
    one, two, mono = discover(tmp_path)
    assert [s.chain_id for s in (one, two, mono)] == ["cplx_A", "cplx_B", "mono"]
    first, second = featurize_chain(one), featurize_chain(two)
    assert (first.sequence, second.sequence) == (A, B)
    alone = tmp_path / "alone"  # what the monomers' own alignments would give
    alone.mkdir()
    (alone / "a.a3m").write_text(f">q\n{A}\n>p\nACDwwEW\n>a1\nAaC-EF\n")
    (alone / "b.a3m").write_text(f">q\n{B}\n>p\nGHIKLW\n>b1\nGHxxIKL-\n>b2\nGH-KL-\n")
    for got, source in zip((first, second), discover(alone), strict=True):
        want = featurize_chain(source)
        assert (got.msa == want.msa).all()
        assert (got.deletion_matrix() == want.deletion_matrix()).all()
        assert "one chain of a complex (1 x A of 5 residues, 1 x B of 6" in got.dropped[0]


def test_copies_in_a_complex_are_counted(tmp_path: Path) -> None:
    (tmp_path / "dimer.a3m").write_text(f"#5\t2\n>101\n{A}\n>x\nAC-EF\n")
    (tmp_path / "hetero.a3m").write_text(COMPLEX.replace("1,1", "2,1", 1))
    dimer, *hetero = map(featurize_chain, discover(tmp_path))
    assert (dimer.chain_id, dimer.num_alignments) == ("dimer", 2)
    assert "2 x A of 5 residues" in dimer.dropped[0]
    assert [record.chain_id for record in hetero] == ["hetero_A", "hetero_C"]


@pytest.mark.parametrize("letters", ["AB", "BC"])  # ColabFold's models began with B once
def test_the_model_of_a_complex_gives_each_chain_its_own_atoms(
    letters: str, tmp_path: Path
) -> None:
    atom = "ATOM  {:5d}  CA  {} {}{:4d}    {:8.3f}   0.000   0.000  1.00 90.00           C\n"
    names = {"A": "ALA", "G": "GLY"}
    model = [
        atom.format(i + 1, names[letter], chain, i + 1, 3.8 * i)
        for chain, sequence in zip(letters, ("AAA", "GGGG"), strict=True)
        for i, letter in enumerate(sequence)
    ]
    (tmp_path / "c_unrelaxed_rank_001_x.pdb").write_text("".join(model) + "END\n")
    (tmp_path / "c.a3m").write_text("#3,4\t1,1\n>101\t102\nAAAGGGG\n")
    one, two = map(featurize_chain, discover(tmp_path))
    assert (one.sequence, two.sequence) == ("AAA", "GGGG")
    assert one.is_distillation and one.all_atom_mask is not None and one.all_atom_mask.any()


def test_a_complex_that_is_not_what_it_says_is_one_broken_chain_each(tmp_path: Path) -> None:
    (tmp_path / "c.a3m").write_text(COMPLEX + ">short\nACD\n")
    for source in discover(tmp_path):
        with pytest.raises(InputError, match=r"c\.a3m:16: a row without the 11 columns"):
            featurize_chain(source)
    folder = tmp_path / "alignments" / "1abc_A"
    folder.mkdir(parents=True)
    (folder / "x.a3m").write_text(COMPLEX)
    (source,) = discover(tmp_path / "alignments")
    with pytest.raises(InputError, match="alignment of a complex"):
        featurize_chain(source)


ODD = {
    "colon": ("ACD:EFG", "joins the chains of a complex"),
    "gaps": ("ACD-EFG", "a gap, so this is an alignment"),
    "stop": ("ACD*EFG", "a stop codon"),
    "ligand": ("CC(=O)N", "SMILES"),
    "empty": ("", "a header without residues"),
    "rna": ("GGCAUCCGAUGG", "the bases of an RNA"),
    "dna": ("GGCATCCGATGG", "the bases of a DNA"),
}


def test_one_bad_fasta_record_is_one_broken_chain(tmp_path: Path) -> None:
    bad = "".join(f">{name}\n{sequence}\n" for name, (sequence, _) in ODD.items())
    fasta = tmp_path / "a.fasta"
    fasta.write_text(f">good1\nACDEF*\n{bad}>good2\nMKV\n")
    problems: list[InputError] = []
    sources = discover(fasta, problems=problems)
    assert [source.chain_id for source in sources] == ["good1", "good2"]
    assert [problem.item for problem in problems] == list(ODD)
    for problem, (_, why) in zip(problems, ODD.values(), strict=True):
        assert why in str(problem) and problem.line and problem.path == str(fasta)
    assert check_input(str(fasta)).findings["bad id or unreadable file"].count == len(ODD)
    data = str(tmp_path / "data")
    report = run_job(str(fasta), data, executor="local", workers=1, max_broken=1.0)
    assert (report.state, report.num_good, report.num_broken) == ("published", 2, len(ODD))


def test_an_input_with_nothing_usable_says_why(tmp_path: Path) -> None:
    (tmp_path / "x.fasta").write_text(">rna\nGGCAUCCGAUGG\n>gone\n")
    with pytest.raises(InputError, match=r"rna: .*x\.fasta:1: no chain in it.*RNA.*1 more"):
        run_job(str(tmp_path / "x.fasta"), str(tmp_path / "data"), executor="local")
    (tmp_path / "1abc.cif").write_text("data_1abc\n_entry.id 1ABC\n")
    with pytest.raises(InputError, match=r"1abc\.cif.*no chain in it can be used: no atoms"):
        run_job(str(tmp_path / "1abc.cif"), str(tmp_path / "data"), executor="local")


def test_an_alignment_of_bases_is_no_protein(tmp_path: Path) -> None:
    (tmp_path / "r.a3m").write_text(">q\nGGCAUCCGAUGG\n>x\nGGCAU--GAUGG\n")
    (source,) = discover(tmp_path)
    with pytest.raises(InputError, match="an alignment of an RNA"):
        featurize_chain(source)
