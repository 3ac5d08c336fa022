"""`evofeed featurize proteins.fasta --search-db ...`: a bare FASTA is enough."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from evofeed.errors import InputError
from evofeed.featurize import commands, discover, search_fasta
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


def test_sequences_and_databases_of_an_earlier_call_are_not_in_the_next(tmp_path: Path) -> None:
    fasta = tmp_path / "query.fasta"
    databases = [str(tmp_path / f"{name}.fasta") for name in ("one", "two")]
    for database in databases:
        Path(database).write_text(f">s\n{relative(3)}\n")

    def call(text: str, databases: list[str]) -> dict[str, list[str]]:
        fasta.write_text(text)
        folder = commands._search(str(fasta), databases, "", "", 1, quiet=True)
        return {s.chain_id: [ref.name for _, ref in s.alignment_files()] for s in discover(folder)}

    both = ["one_hits.sto", "two_hits.sto"]
    mine, other = f">mine\n{QUERY}\n", f">other\n{relative(9)}\n"
    assert call(mine + other, databases) == {"mine": both, "other": both}
    assert call(mine, databases[:1]) == {"mine": both[:1]}


def test_two_databases_of_one_name_are_refused_before_anything_is_searched(tmp_path: Path) -> None:
    fasta = tmp_path / "query.fasta"
    fasta.write_text(f">mine\n{QUERY}\n")
    databases = [str(tmp_path / name / "uniref.fasta") for name in ("old", "new")]
    for database in databases:
        Path(database).parent.mkdir()
        Path(database).write_text(f">s\n{QUERY}\n")
    with pytest.raises(InputError, match=r"new/uniref\.fasta: .* called uniref_hits\.sto"):
        search_fasta(str(fasta), str(tmp_path / "out"), search_dbs=databases)
    assert not list((tmp_path / "out").rglob("*.sto"))


def test_a_template_database_alone_is_a_wrong_call(tmp_path: Path) -> None:
    done = run("a.fasta", str(tmp_path / "data"), "--template-db", "pdb.fasta")
    assert done.returncode == 2
    assert "--search-db" in done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f">a\n{QUERY}\n>a\n{QUERY[:30]}\n", "a: "),
        ("", "there is no sequence in it"),
        (QUERY, "before the first '>'"),
    ],
)
def test_sequences_that_cannot_be_told_apart_or_are_none_are_refused(
    tmp_path: Path, text: str, says: str
) -> None:
    fasta = tmp_path / "query.fasta"
    fasta.write_text(text)
    with pytest.raises(InputError, match=r"query\.fasta") as caught:
        search_fasta(str(fasta), str(tmp_path / "out"), search_dbs=[str(fasta)])
    assert says in str(caught.value)
    assert not (tmp_path / "out").exists()
