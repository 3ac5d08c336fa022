"""Job files, tables and databases of other programs give the chains that are in them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.featurize.search.family import family, hh_db, require_programs
from tests.featurize.test_roads import A, B, write

from evofeed.base.errors import InputError
from evofeed.featurize import ChainSource, discover, featurize_chain
from evofeed.featurize.inputs.roads.tables import chai_name
from evofeed.featurize.job.run import run_job
from evofeed.store import Dataset

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
    assert len(chain["msa"]) == 1  # what changed inside was noticed


@pytest.mark.system
@pytest.mark.parametrize("name", ["gone.a3m", "x" * 300, "a\0b.a3m", "/"])
def test_a_chain_whose_alignment_is_gone_is_broken(name: str, tmp_path: Path, inside: None) -> None:
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
    assert {one.chain_id: depth(one) for one in sources} == {"1abc_A": WANT, "2abc_B": WANT}
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
