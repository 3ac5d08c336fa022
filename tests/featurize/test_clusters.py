"""Cluster files of every kind give the true sizes, or say why they cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from evofeed.base.errors import InputError
from evofeed.featurize import ChainSource, check_input
from evofeed.featurize.inputs.clusters import cluster_sizes
from evofeed.featurize.job.run import run_job
from evofeed.store import Dataset
from evofeed.store.likeness import Clusters, overlap


def chains(*names: str) -> list[ChainSource]:
    return [ChainSource(name) for name in names]


def written(folder: Path, text: str) -> str:
    (folder / "clusters").write_text(text)
    return str(folder / "clusters")


def test_mmseqs_table_and_lines_are_distinguished(tmp_path: Path) -> None:
    sources = chains("1abc_A", "2abc_A", "3abc_A", "4abc_A", "5abc_A")
    want = dict(zip([s.chain_id for s in sources], [3, 3, 3, 1, -1], strict=True))
    table = "1ABC_A\t1ABC_A\n1ABC_A\t3ABC_A\n1ABC_A\t2ABC_A\n4ABC_A\t4ABC_A\n"
    assert cluster_sizes(written(tmp_path, table), sources) == want
    assert cluster_sizes(written(tmp_path, "1ABC_A 2ABC_A 3ABC_A\n4ABC_A\n"), sources) == want
    pairs = written(tmp_path, "1abc_A 2abc_A\n3abc_A\t4abc_A\n")  # two clusters of two
    assert set(cluster_sizes(pairs, sources[:4]).values()) == {2}
    clusters = Clusters(written(tmp_path, table))
    assert overlap(["2abc_A"], ["3abc_A", "4abc_A"], clusters).shared == (("2abc_A", "3abc_A"),)


def test_chains_that_differ_in_case_have_their_own_cluster(tmp_path: Path) -> None:
    path = written(tmp_path, "7ABC_A 1XYZ_B 2XYZ_B\n7ABC_a\n")
    assert cluster_sizes(path, chains("7abc_A", "7abc_a")) == {"7abc_A": 3, "7abc_a": 1}


def test_rcsb_entities_are_matched_by_the_mmcif_file(tmp_path: Path) -> None:
    entry = Path(__file__).with_name("data") / "entities.cif"
    sources = [ChainSource(f"1abc_{c}", structure=str(entry)) for c in "ABCD"]
    path = written(tmp_path, "9XYZ_1 1ABC_1 8XYZ_2\n1ABC_2\n")
    sizes = cluster_sizes(path, sources)
    assert sizes == {"1abc_A": 3, "1abc_B": 1, "1abc_C": 3, "1abc_D": -1}
    with pytest.raises(InputError, match=r"entities as RCSB numbers them.*9XYZ_1"):
        cluster_sizes(path, chains("1abc_A"))


def test_a_job_and_a_check_list_the_chains_in_no_cluster(tmp_path: Path, inside: None) -> None:
    (tmp_path / "raw").mkdir()
    for name in ("one", "two", "three"):
        (tmp_path / "raw" / f"{name}.a3m").write_text(f">{name}\nACDEF\n")
    path = written(tmp_path, "one\tone\none\ttwo\n")
    raw, data = str(tmp_path / "raw"), str(tmp_path / "data")
    assert check_input(raw, clusters=path).findings["in no cluster"].examples == ["three"]
    report = run_job(raw, data, clusters=path)
    index = Dataset.open(data).index
    sizes = dict(zip(index["chain_id"].to_pylist(), index["cluster_size"].to_pylist(), strict=True))
    assert sizes == {"one": 2, "two": 2, "three": -1}
    alone = [chain for chain, notes in report.notes.items() if "in no cluster" in " ".join(notes)]
    assert alone == ["three"]
