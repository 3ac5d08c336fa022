"""Every file of an input is used, unused for a reason, left out as a non-protein, or broken."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tests.featurize.test_pdb import protein, residue
from tests.featurize.test_readers import write

from evofeed.base.errors import InputError, JobError, UnusedInput
from evofeed.featurize import check_input, discover, featurize_chain
from evofeed.featurize.job import Ledger, run_job
from evofeed.featurize.job.options import JobOptions
from evofeed.featurize.job.show import summary
from evofeed.store import Dataset

A3M = ">{0}\nACDEFGHIKL\n>r\nACDEFGHIKL\n>s\nACDEFGHIKM\n"


def discovered(root: Path) -> tuple[list[str], list[InputError]]:
    """Chain ids of an input, and its problems."""
    problems: list[InputError] = []
    return [source.chain_id for source in discover(root, problems=problems)], problems


ROWS = yaml.safe_load(Path(__file__).with_name("data").joinpath("inputs.yaml").read_text())


@pytest.mark.parametrize("case", ROWS)
def test_files_of_a_folder_are_these_chains_with_so_many_rows(case: str, tmp_path: Path) -> None:
    row = ROWS[case]
    write(tmp_path, row["files"])
    for given in row.get("given", [""]):
        root = tmp_path / given
        ids, problems = discovered(root)
        assert ids == [*row["chains"]]
        left_out = row.get("left_out", [])
        assert all(text in str(problem) for text, problem in zip(left_out, problems, strict=True))
        assert check_input(str(root)).ok == (not left_out)
        records = [featurize_chain(source) for source in discover(root, problems=[])]
        assert [record.num_alignments for record in records] == [*row["chains"].values()]
        with_atoms = [record.chain_id for record in records if record.all_atom_mask is not None]
        assert with_atoms == row.get("structures", [])
        notes = [line for record in records for line in (*record.dropped, record.description)]
        assert all(any(text in line for line in notes) for text in row.get("notes", [])), notes


def test_models_of_a_job_are_not_chains_and_unused_ones_are_in_check_report_and_summary(
    tmp_path: Path, inside: None
) -> None:
    model = protein("A", "ALA CYS ASP GLU PHE GLY HIS ILE LYS LEU", b=90)
    files = {f"x_unrelaxed_rank_00{rank}_model_1.pdb": model for rank in (1, 2)}
    files |= {"x.a3m": A3M.format("x"), "lone.a3m": ">q\nACDEFGHIKL\n"}
    raw = write(tmp_path / "raw", files)
    ids, problems = discovered(raw)
    assert ids == ["lone", "x"]
    (problem,) = problems
    assert isinstance(problem, UnusedInput) and "another file of x" in problem.message
    assert "to use it, call it x.pdb" in problem.message
    assert str(problem.path).endswith("rank_002_model_1.pdb")
    report = check_input(str(raw))
    assert report.ok and report.findings["unused file"].count == 1
    job = run_job(str(raw), str(tmp_path / "data"))
    assert [item["type"] for item in job.left_out] == ["UnusedInput"] and job.num_broken == 0
    written = json.loads(Path(job.path).read_text())
    assert written["left_out"] == [dict(item) for item in job.left_out]
    text = "\n".join(summary(job))
    assert "1 unused, x_unrelaxed_rank_002_model_1.pdb" in text
    assert "1 of 2 chains have no aligned row but the query" in text


def test_non_proteins_are_left_out_and_not_broken(tmp_path: Path, inside: None) -> None:
    files = dict.fromkeys(("1aaa.pdb", "1bbb.pdb", "1ccc.pdb"), protein())
    files["1bna.pdb"] = residue("DA", "A", "1 ") + residue("DC", "A", "2 ")
    raw = write(tmp_path / "raw", files | {"1bad.pdb": "ATOM nonsense\n"})
    ids, problems = discovered(raw)
    assert ids == ["1aaa_A", "1bbb_A", "1ccc_A"]
    assert sorted(type(p).__name__ for p in problems) == ["MmcifError", "NoProtein"]
    job = run_job(str(raw), str(tmp_path / "data"))
    assert (job.exit_code, job.num_good, job.num_broken, job.num_chains) == (0, 3, 1, 4)
    assert [item["type"] for item in job.left_out] == ["NoProtein"]
    assert "1 left out, no protein" in "\n".join(summary(job))


def test_a_share_of_broken_chains_counts_from_twenty_on() -> None:
    options = JobOptions()
    assert not options.exceeded_share(4, 19) and options.exceeded_share(2, 20) == "0.05"
    assert not options.exceeded_share(1, 20)
    assert JobOptions(max_broken=0.1).exceeded_share(1, 4) == "0.1"
    assert JobOptions(max_broken=0.0).exceeded_share(1, 4) == "0"


def test_a_pipe_is_an_error_and_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "1abc.cif")
    (tmp_path / "x.a3m").write_text(A3M.format("x"))
    start = time.monotonic()
    ids, problems = discovered(tmp_path)
    assert ids == ["x"] and "not a regular file" in problems[0].message
    with pytest.raises(InputError, match="neither a file nor a folder"):
        discover(tmp_path / "1abc.cif")
    assert time.monotonic() - start < 30


def test_capital_suffixes_byte_order_marks_and_bzip2_are_read(tmp_path: Path) -> None:
    (tmp_path / "1AAA.PDB").write_text(protein())
    (tmp_path / "1bbb.pdb.bz2").write_bytes(bz2.compress(protein().encode()))
    (tmp_path / "1ccc.PDB.GZ").write_bytes(gzip.compress(protein().encode()))
    (tmp_path / "x.a3m").write_bytes(b"\xef\xbb\xbf" + A3M.format("x").encode())
    ids, problems = discovered(tmp_path)
    assert ids == ["1AAA_A", "1bbb_A", "1ccc_A", "x"] and not problems
    assert all(featurize_chain(source).sequence for source in discover(tmp_path))


def test_a_ref_keeps_the_chains_of_another_input_unless_told(tmp_path: Path, inside: None) -> None:
    data = str(tmp_path / "data")
    for folder, names in (("one", "abc"), ("two", "cd")):
        write(tmp_path / folder, {f"{name}.a3m": A3M.format(name) for name in names})
    run_job(str(tmp_path / "one"), data)
    with pytest.raises(JobError, match=r"has 3 chains of .*one, 2 of which .*say `replace`"):
        run_job(str(tmp_path / "two"), data)
    assert len(Dataset.open(data)) == 3
    (tmp_path / "one" / "a.a3m").unlink()  # the same input may shrink
    assert run_job(str(tmp_path / "one"), data).num_good == 2
    assert run_job(str(tmp_path / "two"), data, replace_ref=True).num_good == 2


def test_a_damaged_ledger_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "x.a3m").write_text(A3M.format("x"))
    (tmp_path / "ledger").write_bytes(b"no database " * 999)
    with pytest.raises(JobError, match="move it away and run again"):
        run_job(str(tmp_path / "x.a3m"), str(tmp_path / "d"), ledger=str(tmp_path / "ledger"))


def test_a_terminated_job_prints_that_its_work_is_kept(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", {f"c{n}.a3m": A3M.format("x") for n in range(2000)})
    command = [sys.executable, "-m", "evofeed.cli", "featurize", str(raw), str(tmp_path / "d")]
    job = subprocess.Popen(
        [*command, "--executor", "local", "--workers", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("d/shards/*")):
        assert job.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    job.send_signal(signal.SIGTERM)
    _, errors = job.communicate(timeout=60)
    assert job.returncode == 128 + signal.SIGTERM
    assert "interrupted: finished work is kept" in errors
    (state,) = [job.state for job in Ledger(f"{tmp_path}/d/jobs/ledger.sqlite").jobs()]
    assert state == "cancelled"
