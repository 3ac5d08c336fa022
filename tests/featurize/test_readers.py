"""Chains of other programs' inputs: alignments of complexes, jobs, tables and databases."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.featurize.search.family import family, hh_db, require_programs
from tests.featurize.test_mmcif import small
from tests.featurize.test_pdb import protein

from evofeed.base.errors import InputError
from evofeed.featurize import ChainSource, FeaturizeConfig, check_input, discover, featurize_chain
from evofeed.featurize.entries.input import EntriesInput
from evofeed.featurize.entries.job import prepare_entries
from evofeed.featurize.inputs.readers.tables import chai_name
from evofeed.featurize.job.run import run_job
from evofeed.featurize.job.show import _common_notes
from evofeed.store import Dataset

A, B = "ACDEF", "GHIKLM"
COMPLEX = (
    f"#5,6\t1,1\n>101\t102\n{A}{B}\n"
    ">UniRef100_A\t90\tUniRef100_B\t80\nACDwwEWGHIKLW\n"
    f">101\n{A}------\n>a1\t7\nAaC-EF------\n"
    f">102\n-----{B}\n>b1\n-----GHxxIKL-\n>b2\n-----GH-KL-\n"
)


def rows(text: str) -> list[str]:
    return text.split("\n")[1::2]


def test_a_colabfold_complex_is_split_into_chains(tmp_path: Path) -> None:
    (tmp_path / "cplx.a3m").write_text(COMPLEX)
    (tmp_path / "mono.a3m").write_text(f"#5\t1\n>101\n{A}\n>x\nAC-EF\n")
    sources = discover(tmp_path)
    assert [source.chain_id for source in sources] == ["cplx_A", "cplx_B", "mono"]
    chains = [featurize_chain(source) for source in sources[:2]]
    assert [chain.sequence for chain in chains] == [A, B]
    monomers = {"a.a3m": f">q\n{A}\n>p\nACDwwEW\n>a1\nAaC-EF\n"}
    monomers["b.a3m"] = f">q\n{B}\n>p\nGHIKLW\n>b1\nGHxxIKL-\n>b2\nGH-KL-\n"
    write(tmp_path / "monomers", monomers)
    for got, source in zip(chains, discover(tmp_path / "monomers"), strict=True):
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
    finding = check_input(str(tmp_path)).findings["something left out"]
    assert finding.count == 3 and "2 x A of 5 residues" in finding.examples[0]


@pytest.mark.parametrize("letters", ["AB", "BC"])  # ColabFold's models began with B once
def test_a_model_of_a_complex_gives_each_chain_its_atoms(letters: str, tmp_path: Path) -> None:
    model = protein(letters[0], "ALA ALA ALA") + protein(letters[1], "GLY GLY GLY GLY")
    files = {"c_unrelaxed_rank_001_x.pdb": model, "c.a3m": "#3,4\t1,1\n>101\t102\nAAAGGGG\n"}
    write(tmp_path, files)
    one, two = map(featurize_chain, discover(tmp_path))
    assert (one.sequence, two.sequence) == ("AAA", "GGGG")
    assert one.is_distillation and one.all_atom_mask is not None and one.all_atom_mask.any()


ODD = {
    "colon": ("ACD:EFG", "joins the chains of a complex"),
    "gaps": ("ACD-EFG", "a gap, so this is an alignment"),
    "stop": ("ACD*EFG", "a stop codon"),
    "ligand": ("CC(=O)N", "SMILES"),
    "empty": ("", "a header without residues"),
    "rna": ("GGCAUCCGAUGG", "the bases of an RNA"),
    "dna": ("GGCATCCGATGG", "the bases of a DNA"),
}
BASES = ("rna", "dna")


@pytest.mark.system
def test_a_bad_fasta_record_is_one_broken_chain_and_bases_are_left_out(
    tmp_path: Path, inside: None
) -> None:
    bad = "".join(f">{name}\n{sequence}\n" for name, (sequence, _) in ODD.items())
    fasta = tmp_path / "a.fasta"
    fasta.write_text(f">good1\nACDEF*\n{bad}>good2\nMKV\n")
    problems: list[InputError] = []
    sources = discover(fasta, problems=problems)
    assert [source.chain_id for source in sources] == ["good1", "good2"]
    assert [problem.item for problem in problems] == list(ODD)
    for problem, (_, why) in zip(problems, ODD.values(), strict=True):
        assert why in str(problem) and problem.line and problem.path == str(fasta)
    findings = check_input(str(fasta)).findings
    assert findings["bad id or unreadable file"].count == len(ODD) - len(BASES)
    assert findings["no protein"].count == len(BASES)
    data = str(tmp_path / "data")
    report = run_job(str(fasta), data, max_broken=1.0)
    assert (report.state, report.num_good) == ("published", 2)
    assert [chain["chain_id"] for chain in report.broken] == [n for n in ODD if n not in BASES]
    assert [chain["type"] for chain in report.left_out] == ["NoProtein"] * len(BASES)


def test_the_error_for_an_unusable_input_has_the_reason(tmp_path: Path) -> None:
    (tmp_path / "x.fasta").write_text(">rna\nGGCAUCCGAUGG\n>gone\n")
    with pytest.raises(InputError, match=r"rna: .*x\.fasta:1: no chain in it.*RNA.*1 more"):
        run_job(str(tmp_path / "x.fasta"), str(tmp_path / "data"))
    (tmp_path / "1abc.cif").write_text("data_1abc\n_entry.id 1ABC\n")
    with pytest.raises(InputError, match=r"1abc\.cif.*no chain in it can be used: no atoms"):
        run_job(str(tmp_path / "1abc.cif"), str(tmp_path / "data"))


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_pairing_alignments_and_hits_of_others_do_not_enter_the_msa(tmp_path: Path) -> None:
    files = {"hmmsearch.a3m": f">q\n{A}\n>x\nWWWWW\n"}
    files |= {"uniprot.sto": f"# STOCKHOLM 1.0\nq {A}\nx YYYYY\n//\n"}
    files |= {"non_pairing.a3m": f">q\n{A}\n>x\nAC-EF\n"}
    write(tmp_path, {f"msa/1/{name}": text for name, text in files.items()})
    (source,) = discover(tmp_path / "msa")
    record = featurize_chain(source)
    assert (record.chain_id, record.num_alignments) == ("1", 2)
    assert [note for note in record.dropped if "not read" in note] == [
        "hmmsearch.a3m: template hits in a form that is not read",
        "uniprot.sto: for pairing the chains of a complex, not read",
    ]
    assert featurize_chain(source, FeaturizeConfig.openfold()).num_alignments == 4


@pytest.mark.parametrize(
    ("argument", "match"),
    [
        ("structure_dir", r"no structure here .*1abc\.cif .* found .*9xyz\.txt"),
        ("template_mmcif_dir", "no template structure here"),
    ],
)
def test_a_folder_that_fits_no_chain_is_an_error(argument: str, match: str, tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", {"1abc_A.a3m": f">q\n{A}\n"})
    other = write(tmp_path / "other", {"x/9xyz.txt": ""})
    with pytest.raises(InputError, match=match):
        discover(raw, **{argument: other})


MSA = f">q\n{A}\n>x\nACwwDE-\n"
WANT = (2, 2)  # rows, and insertions before the third column of the second


def depth(source: ChainSource) -> tuple[int, int]:
    record = featurize_chain(source)
    assert record.sequence == A
    return record.num_alignments, int(record.deletion_matrix()[-1, 2])


def af3(folder: Path) -> Path:
    """An input of AlphaFold 3 with every kind of molecule in it."""
    proteins = [
        {"id": ["A", "B"], "sequence": A, "unpairedMsa": MSA, "pairedMsa": MSA, "templates": [{}]},
        {"id": "C", "sequence": B, "unpairedMsaPath": "c.a3m", "pairedMsa": ""},
    ]
    others = [{"ligand": {"id": "L", "ccdCodes": ["ATP"]}}, {"rna": {"id": "R", "sequence": "AC"}}]
    job = {"name": "My job", "dialect": "alphafold3", "version": 2, "modelSeeds": [1]}
    job["sequences"] = [{"protein": protein} for protein in proteins] + others
    return write(folder, {"job.json": json.dumps(job), "c.a3m": f">q\n{B}\n>x\n{B}\n>y\n-----M\n"})


@pytest.mark.parametrize("whole", [True, False])
def test_alphafold_3_inputs(tmp_path: Path, whole: bool) -> None:
    one, two = discover(af3(tmp_path) if whole else af3(tmp_path) / "job.json")
    assert (one.chain_id, two.chain_id) == ("My_job_A", "My_job_C")
    assert depth(one) == WANT
    assert featurize_chain(two).num_alignments == 2  # of three rows two are alike
    notes = " | ".join(featurize_chain(one).dropped)
    for part in (
        "uniprot_hits.a3m: for pairing",
        "1 templates given",
        "2 copies in the complex: A, B",
        "L (ligand), R",
    ):
        assert part in notes


@pytest.mark.system
def test_a_job_over_an_alignment_inside_a_json_file(tmp_path: Path, inside: None) -> None:
    data = str(tmp_path / "data")
    report = run_job(str(af3(tmp_path / "raw")), data)
    assert (report.state, report.num_good) == ("published", 2)
    (tmp_path / "raw" / "job.json").write_text(
        (tmp_path / "raw" / "job.json").read_text().replace("ACwwDE-", "ACDEF")
    )
    assert run_job(str(tmp_path / "raw"), data).num_good == 2
    (chain,) = Dataset.open(data).read(["My_job_A"])
    assert len(chain["msa"]) == 1  # the alignment changed inside the file


@pytest.mark.parametrize(("letters", "wrong"), [("MKV1AAG", "'1' is not a"), ("AUGC", "RNA")])
def test_letters_of_a_job_are_wrong_for_check_as_for_the_job_and_the_file_is_named(
    letters: str, wrong: str, tmp_path: Path
) -> None:
    protein = {"id": "A", "sequence": letters}
    write(tmp_path, {"a.json": json.dumps({"name": "x", "sequences": [{"protein": protein}]})})
    (source,) = discover(tmp_path)
    with pytest.raises(InputError, match=f"a.json.*{wrong}"):
        featurize_chain(source)
    findings = check_input(str(tmp_path)).findings
    finding = findings.get("chain cannot be featurized") or findings["no protein"]
    assert "a.json" in finding.examples[0] and wrong in finding.examples[0]


@pytest.mark.parametrize(
    ("note", "kind"),
    [
        ("2 template hits passed over, e.g. 1abc_A: released too late",
         "template hits passed over: released too late"),
        ("2 copies in the complex: A, B", "copies in the complex"),
        ("no protein, left out: C, D (ligand), E (rna)", "no protein, left out"),
        ("no alignment: the MSA is the query alone", "no alignment: the MSA is the query alone"),
        ("1abc.cif: 3 atoms outside the sequence", "atoms outside the sequence"),
        ("1abc.cif also holds ligand 2 GOL (A), 7 waters: not read", "other molecules: not read"),
        ("one chain of a complex (1 x A of 10 residues, 1 x B of 9 residues): how its rows pair is "
         "not kept", "one chain of a complex: how its rows pair is not kept"),
    ],
)  # fmt: skip
def test_the_summary_of_a_job_counts_notes_by_kind(note: str, kind: str) -> None:
    assert _common_notes({"1abc_A": [note], "2xyz_B": [note]}) == f"{kind} (2)"


@pytest.mark.system
@pytest.mark.parametrize("name", ["gone.a3m", "x" * 300, "a\0b.a3m", "/"])
def test_a_chain_without_its_alignment_is_broken(name: str, tmp_path: Path, inside: None) -> None:
    write(tmp_path / "raw", {"hits.txt": f">q\n{B}\n>x\nGHIK--\n"})
    named = {"id": "B", "sequence": B, "unpairedMsaPath": "hits.txt"}
    proteins = [{"id": "A", "sequence": A, "unpairedMsaPath": name}, named]
    job = {"name": "j", "sequences": [{"protein": protein} for protein in proteins]}
    raw = write(tmp_path / "raw", {"j.json": json.dumps(job)})
    bad, good = discover(raw)
    assert featurize_chain(good).num_alignments == 2
    with pytest.raises(InputError, match=r"^j_A: .*(no such file|cannot be read)"):
        featurize_chain(bad)
    if name == "gone.a3m":  # a job lists it
        data = str(tmp_path / "data")
        report = run_job(str(raw), data, max_broken=1.0)
        assert [broken["chain_id"] for broken in report.broken] == ["j_A"]


def test_chai_tables_by_the_hash_of_the_sequence(tmp_path: Path) -> None:
    names = ["sequence", "source_database", "pairing_key", "comment"]
    rows = [[A, "query", "", ""], ["ACwwDE-", "uniref90", "", "x"]]
    table = pa.table(
        {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    )
    (tmp_path / "msas").mkdir()
    pq.write_table(table, tmp_path / "msas" / chai_name(A))
    write(tmp_path, {"job.fasta": f">protein|name=lys\n{A}\n"})
    (source,) = discover(tmp_path / "job.fasta")
    assert (source.chain_id, depth(source)) == ("lys", WANT)
    (alone,) = discover(tmp_path / "msas")
    assert depth(alone) == WANT


def test_hh_suite_databases(tmp_path: Path) -> None:
    entries = {"1abc_A": MSA, "2abc_B": f">ss_pred\nCCCCC\n{MSA}"}
    data, lines = b"", []
    for name, text in entries.items():
        lines.append(f"{name}\t{len(data)}\t{len(text) + 1}\n")
        data += text.encode() + b"\0"
    (tmp_path / "db_a3m.ffdata").write_bytes(data)
    write(
        tmp_path, {"db_a3m.ffindex": "".join(lines), "db_hhm.ffindex": "", "db_cs219.ffindex": ""}
    )
    sources = discover(tmp_path)
    assert {s.chain_id: depth(s) for s in sources} == {"1abc_A": WANT, "2abc_B": WANT}
    assert discover(tmp_path / "db_a3m.ffdata") == sources
    write(tmp_path, {"db_a3m.ffindex": "1abc_A 0 5\n"})
    with pytest.raises(InputError, match=r"ffindex:1: expected name, offset and length"):
        discover(tmp_path)


@pytest.mark.system
def test_a_database_that_hh_suite_built(tmp_path: Path) -> None:
    require_programs()
    first, *others = family(7, size=4)
    rows = [("q", first), *((f"x{n}", first[:n] + "-" + first[n + 1 :]) for n in range(3))]
    hh_db(tmp_path / "db", {"1abc_A": rows, "2abc_B": [("q", others[0])]})
    one, two = map(featurize_chain, discover(tmp_path))
    assert (one.chain_id, one.sequence, one.num_alignments) == ("1abc_A", first, 4)
    assert (two.chain_id, two.sequence) == ("2abc_B", others[0])


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_alphafold_3s_model_is_the_structure_of_its_chains(packed: str, tmp_path: Path) -> None:
    molecule = {"protein": {"id": ["A", "B"], "sequence": "AG", "unpairedMsa": ">q\nAG\n"}}
    job = {"name": "My job", "sequences": [molecule]}
    text = small([(".", "1", "1.0")])
    write(tmp_path, {"my_job/my_job_data.json": json.dumps(job)})
    model = tmp_path / "my_job" / f"my_job_model.cif{packed}"
    model.write_bytes(gzip.compress(text) if packed else text)
    for folder in (tmp_path, tmp_path / "my_job"):
        (source,) = discover(folder)
        assert (source.structure, source.author_chain) == (str(model), "A")
        record = featurize_chain(source)
        assert record.is_distillation and record.all_atom_mask is not None
        assert "unused file" not in check_input(str(folder)).findings


@pytest.mark.parametrize("suffix", [".fas", ".FAS.gz"])
def test_fasta_files_called_fas_are_read_and_a_txt_is_to_be_renamed(
    suffix: str, tmp_path: Path
) -> None:
    data = f">q\n{A}\n".encode()
    (tmp_path / f"x{suffix}").write_bytes(gzip.compress(data) if "gz" in suffix else data)
    for place in (tmp_path, tmp_path / f"x{suffix}"):
        (source,) = discover(place)
        assert (source.chain_id, source.sequence) == ("q", A)
    (tmp_path / f"x{suffix}").rename(tmp_path / "x.txt")
    for place in (tmp_path, tmp_path / "x.txt"):
        with pytest.raises(InputError, match=r"rename a FASTA file to \.fasta"):
            discover(place)


def test_the_input_folder_cannot_be_the_dataset(tmp_path: Path) -> None:
    write(tmp_path, {"x.fasta": f">q\n{A}\n", "x.cif": "", "components.cif": ""})
    source = EntriesInput(structures=str(tmp_path), components=f"{tmp_path}/components.cif")
    with pytest.raises(InputError, match="input and DATASET are one folder: name another"):
        run_job(str(tmp_path), f"{tmp_path}/")
    with pytest.raises(InputError, match="input and DATASET are one folder: name another"):
        prepare_entries(source, str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 3
