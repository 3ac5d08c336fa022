"""`evofeed featurize proteins.fasta --search-db ...`: a bare FASTA is enough."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from evofeed.store import Dataset

QUERY = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQVKVKALPDAQFEVVHSLAKWKR"


def relative(step: int) -> str:
    """The query with every `step`-th residue changed."""
    return "".join("A" if i % step == 0 else letter for i, letter in enumerate(QUERY))


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "evofeed.cli", "featurize", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_fasta_and_a_database_become_a_dataset(tmp_path: Path) -> None:
    fasta, database = tmp_path / "query.fasta", tmp_path / "database.fasta"
    fasta.write_text(f">mine\n{QUERY}\n")
    database.write_text("".join(f">s{n}\n{relative(n)}\n" for n in (3, 4, 5, 7)))
    data = tmp_path / "data"
    done = run(str(fasta), str(data), "--search-db", str(database), "--executor", "local", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["num_good"] == 1
    record = Dataset.open(str(data))["mine"]
    assert record.sequence == QUERY
    assert record.num_alignments == 5  # the query and its four relatives


def test_a_template_database_alone_is_a_wrong_call(tmp_path: Path) -> None:
    done = run("a.fasta", str(tmp_path / "data"), "--template-db", "pdb.fasta")
    assert done.returncode == 2
    assert "--search-db" in done.stderr
