"""Rules of the formats that recorded chains may not happen to show, one small file each."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.featurize.test_pdb import line
from tests.featurize.test_roads import write

from evofeed.base.errors import InputError, MmcifError, MsaError
from evofeed.featurize import ChainSource, FeaturizeConfig, discover, featurize_chain
from evofeed.featurize.inputs.sources import role_of
from evofeed.featurize.structures.pdb import parse_pdb

OURS, THEIRS = FeaturizeConfig(), FeaturizeConfig.openfold()


# which file is what


@pytest.mark.parametrize(
    ("name", "in_db", "ours", "theirs"),
    [
        ("bfd_uniclust_hits.a3m", False, "a3m", "a3m"),
        ("uniref90_hits.sto", False, "stockholm", "stockholm"),
        ("uniprot_hits.sto", False, "other", "other"),
        ("pdb70_hits.hhr", True, "hhr", "hhr"),
        ("hmm_output.sto", False, "hmmsearch", "hmmsearch"),
        ("hmm_output.sto", True, "hmmsearch", "other"),
        ("hmmsearch_output.sto", False, "hmmsearch", "stockholm"),
        ("hmmsearch_output.sto", True, "hmmsearch", "hmmsearch"),
        ("pdb_hits.sto", False, "hmmsearch", "stockholm"),
        ("embedding.pt", False, "other", "other"),
    ],
)
def test_a_files_name_says_what_it_is(name: str, in_db: bool, ours: str, theirs: str) -> None:
    assert (role_of(name, OURS, in_db), role_of(name, THEIRS, in_db)) == (ours, theirs)


def chain_folder(root: Path, **files: str) -> ChainSource:
    named = {n.replace("__", "/").replace("_a3m", ".a3m"): text for n, text in files.items()}
    write(root / "alignments" / "1abc_A", named)
    (source,) = discover(root)
    return source


def test_rows_come_in_order_of_file_names_whenever_the_files_were_made(tmp_path: Path) -> None:
    source = chain_folder(
        tmp_path, z_a3m=">q\nACDE\n>z\nACDF\n", b_a3m=">q\nACDE\n>b\nACDG\n", a_a3m=">q\nACDE\n"
    )
    record = featurize_chain(source)
    assert record.msa_sources == ("a.a3m", "b.a3m", "z.a3m")
    assert record.msa_source.tolist() == [0, 1, 2]  # the query once, from the first file
    assert [row[-1] for row in record.msa.tolist()] == [6, 7, 13]  # E, G, F


def test_openproteinsets_folders_are_empty_to_openfold(tmp_path: Path) -> None:
    source = chain_folder(tmp_path, a3m__x_a3m=">q\nACDE\n>r\nACDF\n")
    assert len(featurize_chain(source).msa) == 2
    with pytest.raises(InputError, match="nothing to featurize"):
        featurize_chain(source, THEIRS)


def test_an_alignment_of_another_protein_is_refused_and_of_a_variant_noted(tmp_path: Path) -> None:
    source = chain_folder(tmp_path, x_a3m=">q\nACDE\n")
    fasta = tmp_path / "q.fasta"
    for sequence, why in (("ACDEF", "do not belong together"), ("ACDW", "")):
        fasta.write_text(f">1abc_A\n{sequence}\n")
        other = ChainSource("1abc_A", alignment_dir=source.alignment_dir, fasta=str(fasta))
        if why:
            with pytest.raises(MsaError, match=why):
                featurize_chain(other)
        else:
            assert "x.a3m: the query differs from the chain in 1 letters" in (
                featurize_chain(other).dropped
            )


# legacy PDB


def pdb(*atoms: tuple[str, str, str, str, float]) -> bytes:
    """Atom, residue, chain, number with insertion code, B factor."""
    rows = [line(*about, x=f"{i:.3f}", b=b) for i, (*about, b) in enumerate(atoms, 1)]
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
        parse_pdb(data, file_id="t", config=THEIRS)
