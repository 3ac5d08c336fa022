"""Clusters and splits of a set that is hard to split: relatives, fragments of them, and fusions."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.search.family import changed, fasta, require_programs
from tests.inside import units_inside

from evofeed.base.errors import InputError, TooSimilar
from evofeed.featurize.job import run_job
from evofeed.featurize.search.cluster import cluster_sequences
from evofeed.store import Dataset, split_chains
from evofeed.store.inner import connected
from evofeed.store.likeness import Clusters, similar_pairs

FAMILIES, IDENTITY = 12, 0.4


def hard_set() -> list[tuple[str, str]]:
    """Families of relatives at 10 to 50 % changes, a fragment in each, in every third a fusion."""
    draw = random.Random(5)
    first = ["".join(draw.choices("ARNDCQEGHILKMFPSTWYV", k=110)) for _ in range(FAMILIES)]
    records = []
    for number, sequence in enumerate(first):
        kin = [sequence, *(changed(sequence, share, draw) for share in (0.1, 0.3, 0.5))]
        records += [(f"f{number}m{n}", s) for n, s in enumerate(kin)]
        records.append((f"f{number}fragment", changed(kin[1], 0.1, draw)[20:86]))
        if number % 3 == 0:
            records.append((f"f{number}fusion", kin[2] + changed(first[number - 1], 0.2, draw)))
    return records


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The set as FASTA and as a dataset."""
    require_programs()
    folder = tmp_path_factory.mktemp("hard")
    fasta(folder / "all.fasta", hard_set())
    with units_inside():
        assert run_job(str(folder / "all.fasta"), str(folder / "data")).num_broken == 0
    return folder


def hits(folder: Path, first: dict[str, str], second: dict[str, str]) -> list[tuple[str, str]]:
    """Pairs above the identity over 40 residues, by a search of our own making."""
    sides = [fasta(folder / f"{n}.fasta", side.items()) for n, side in enumerate((first, second))]
    words = "--format-output query,target,fident,alnlen -s 7.5 --threads 1".split()
    command = ["mmseqs", "easy-search", *sides, "out.m8", "tmp", *words]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    rows = [line.split() for line in (folder / "out.m8").read_text().splitlines()]
    return [(row[0], row[1]) for row in rows if float(row[2]) > IDENTITY and int(row[3]) >= 40]


def test_no_chain_of_one_part_is_like_one_of_another_and_what_is_no_protein_is_named(
    data: Path, tmp_path: Path
) -> None:
    table, uri, more = str(tmp_path / "clusters.tsv"), str(data / "data"), tmp_path / "more.fasta"
    more.write_text(f"{(data / 'all.fasta').read_text()}>odd\nACD1EFG\n")
    problems: list[InputError] = []
    sequences, clusters = cluster_sequences(str(more), table, identity=IDENTITY, problems=problems)
    assert sequences == len(hard_set()) and [problem.item for problem in problems] == ["odd"]
    assert 5 <= clusters <= FAMILIES - FAMILIES // 3  # fusions join families
    made = split_chains(uri, Clusters(table), {"valid": 0.2}, max_identity=IDENTITY)
    parts = {
        name: {chain: Dataset.open(uri, name)[chain].sequence for chain in Dataset.open(uri, name)}
        for name in ("valid", "train")
    }
    assert sum(map(len, parts.values())) == len(hard_set()) and len(parts["valid"]) > 7
    everything = parts["valid"] | parts["train"]
    alike = {target for _, target in hits(tmp_path, parts["valid"], everything)}
    assert alike and not alike & set(parts["train"])  # it does find what is there
    selection = made["valid"].manifest.config["selection"]
    assert (selection["max_identity"], selection["pairs_above"]) == (IDENTITY, 0)


def test_parts_that_are_alike_are_not_published_unless_one_says_so(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clusters that leave every chain alone; of both splits the parts are compared once."""
    found: list[Any] = []

    def compared(*given: Any, **more: Any) -> Any:
        found[:] = found or [similar_pairs(*given, **more)]
        return found[0]

    monkeypatch.setattr("evofeed.store.selection.similar_pairs", compared)
    table, uri = str(tmp_path / "clusters.tsv"), str(data / "data")
    Path(table).write_text("".join(f"{chain}\t{chain}\n" for chain in Dataset.open(uri)))
    shares = {"leaky": 0.2}
    with pytest.raises(TooSimilar, match=r"pairs of chains in two parts are alike .*--allow-simil"):
        split_chains(uri, Clusters(table), shares, max_identity=IDENTITY)
    with pytest.raises(Exception, match="leaky"):
        Dataset.open(uri, "leaky")
    made = split_chains(uri, Clusters(table), shares, max_identity=IDENTITY, allow_similar=True)[
        "leaky"
    ]
    selection = made.manifest.config["selection"]
    assert selection["pairs_above"] > 0
    query, target, identity, aligned, _ = selection["strongest_pairs"][0]
    assert query in Dataset.open(uri, "leaky") and target in Dataset.open(uri, "train")
    assert identity > IDENTITY and aligned >= 40


def test_what_is_joined_by_way_of_others_is_together() -> None:
    names = ["a", "b", "c", "d", "e"]
    assert connected(names, [("a", "c"), ("d", "c")]) == [["a", "c", "d"], ["b"], ["e"]]
