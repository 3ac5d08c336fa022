"""Subsets of a snapshot: limits hold, reasons are recorded, no cluster is divided."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import evofeed
from tests.store.records import published, random_record

from evofeed.base.errors import DatasetMissing, InputError
from evofeed.store import (
    Dataset,
    DatasetWriter,
    Selection,
    Snapshot,
    dataset_card,
    select_chains,
    split_chains,
)
from evofeed.store.likeness import Clusters, overlap

COUNT = 60
snapshots = partial(evofeed, "snapshots")


@pytest.fixture(scope="module")
def dataset_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "pdb"
    writer = DatasetWriter(str(folder), shard_nbytes=200_000)
    for seed in range(COUNT):
        record = random_record(seed, chain_id=f"c{seed:03d}_A", has_structure=seed % 5 > 0)
        date = f"20{10 + seed % 12}-06-0{1 + seed % 9}" if seed % 7 else ""
        writer.add(record.replace(release_date=date, resolution=(seed % 6) * 1.5))
    writer.commit(config={"featurize": {"x": 1}}, dropped=[{"chain_id": "bad", "reason": "bad"}])
    return folder


@pytest.fixture
def uri(dataset_folder: Path, tmp_path: Path) -> str:
    return str(shutil.copytree(dataset_folder, tmp_path / "pdb"))


@pytest.fixture
def clusters(tmp_path: Path) -> Path:
    """Clusters of four; two of them share a chain; the last three chains are in none."""
    names = [f"c{n:03d}_A" for n in range(COUNT - 3)]
    lines = [" ".join(names[n : n + 4]) for n in range(0, len(names), 4)]
    lines.append("c000_A c005_A")
    path = tmp_path / "clusters.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def chains(uri: str, part: Snapshot) -> set[str]:
    return set(Dataset.open(uri, part.digest))


def test_each_limit_leaves_out_what_it_says_and_nothing_else(uri: str) -> None:
    rows = {row["chain_id"]: row for row in Dataset.open(uri).index.to_pylist()}
    for limits, passes in (
        (Selection(released_from="2015-06-03"), lambda r: r["release_date"] >= "2015-06-03"),
        (Selection(released_before="2015-06-03"), lambda r: "" < r["release_date"] < "2015-06-03"),
        (Selection(max_resolution=3.0), lambda r: 0 < r["resolution"] <= 3.0),
        (Selection(min_residues=30), lambda r: r["num_res"] >= 30),
        (Selection(max_residues=30), lambda r: r["num_res"] <= 30),
        (Selection(min_alignments=20), lambda r: r["num_alignments"] >= 20),
        (Selection(max_aa_fraction=0.12), lambda r: r["max_aa_fraction"] <= 0.12),
        (Selection(with_structure=True), lambda r: r["has_structure"]),
    ):
        part = select_chains(uri, "part", limits)
        expected = {name for name, row in rows.items() if passes(row)}
        assert chains(uri, part) == expected and 0 < len(expected) < COUNT, limits
        assert {d["chain_id"] for d in part.manifest.dropped} == {*rows, "bad"} - expected
        selected = Dataset.open(uri, "part")
        assert selected.digest == part.digest
    assert not selected.verify()


def test_a_selection_that_no_chain_passes_is_refused_with_an_example(uri: str) -> None:
    with pytest.raises(ValueError, match=rf"no chain of {COUNT} passes, .*: .* residues"):
        select_chains(uri, "nothing", Selection(min_residues=99_999))
    with pytest.raises(DatasetMissing):
        Dataset.open(uri, "nothing")


def test_reasons_stand_in_the_card_of_the_part(uri: str) -> None:
    part = select_chains(uri, "train", Selection(max_resolution=3.0, with_structure=True))
    card = dataset_card(Dataset.open(uri, "train"))
    assert card.chains + card.num_left_out == COUNT + 1
    assert {kind.reason for kind in card.left_out} >= {"no structure", "resolution unknown", "bad"}
    assert card.settings["selection.max_resolution"] == "3.0"
    assert part.manifest.parent == Dataset.open(uri).digest
    # The same selection gives the same snapshot.
    again = select_chains(uri, "train", Selection(max_resolution=3.0, with_structure=True))
    assert again.digest == part.digest


def test_parts_are_apart_by_cluster_and_hold_their_shares(uri: str, clusters: Path) -> None:
    cluster_file = Clusters(clusters)
    for seed in range(2):
        parts = split_chains(uri, cluster_file, {"valid": 0.2, "test": 0.1}, seed=seed)
        members = {name: chains(uri, part) for name, part in parts.items()}
        assert sum(map(len, members.values())) == COUNT - 3 == len(set().union(*members.values()))
        for part_name in members:
            for other in set(members) - {part_name}:
                assert not overlap(members[part_name], members[other], cluster_file).shared
        assert 11 <= len(members["valid"]) <= 18 and 5 <= len(members["test"]) <= 13
        joined = next(part for part in members.values() if "c000_A" in part)
        assert {"c000_A", "c003_A", "c004_A", "c007_A"} <= joined  # joined by c005_A
    assert split_chains(uri, cluster_file, {"valid": 0.2, "test": 0.1}, seed=1)["valid"].digest == (
        parts["valid"].digest
    )
    first = Dataset.open(uri, "valid").index.to_pylist()[0]
    assert first["cluster_size"] in (4, 8)
    left_out = {d["reason"] for d in parts["valid"].manifest.dropped}
    alone = "in no cluster: its similarity is unknown"
    assert left_out == {"bad", "in train", "in test", alone}


def test_a_large_cluster_does_not_swallow_a_small_share(uri: str, tmp_path: Path) -> None:
    names = sorted(name for name in Dataset.open(uri) if name != "bad")
    path = tmp_path / "families.txt"
    path.write_text("\n".join([" ".join(names[20:]), *names[:20]]) + "\n")
    cluster_file = Clusters(path)
    for seed in range(2):
        valid = split_chains(uri, cluster_file, {"valid": 0.1}, seed=seed)["valid"]
        assert 0.1 * len(names) <= len(chains(uri, valid)) <= 0.2 * len(names)
    path.write_text(" ".join(names) + "\n")
    with pytest.raises(ValueError, match=r"valid=0.1 of \d+ chains: each cluster has more"):
        split_chains(uri, Clusters(path), {"valid": 0.1})


def test_a_set_can_be_made_apart_from_another(uri: str, clusters: Path, tmp_path: Path) -> None:
    published(tmp_path / "casp", [random_record(99, chain_id="C001_a")])
    casp, cluster_file = Dataset.open(str(tmp_path / "casp")), Clusters(clusters)
    assert chains(uri, select_chains(uri, "one", apart_from=[casp])) == (
        set(Dataset.open(uri)) - {"c001_A"}
    )
    part = chains(uri, select_chains(uri, "two", apart_from=[casp], clusters=cluster_file))
    excluded = {f"c{n:03d}_A" for n in (0, 1, 2, 3, 57, 58, 59)}
    assert part == set(Dataset.open(uri)) - excluded
    assert not overlap(part, casp, cluster_file)


def test_the_commands_make_parts_and_refuse_nonsense(uri: str, clusters: Path) -> None:
    command = ["split", uri, "--clusters", clusters, "--share", "valid=0.2", "--max-identity", "1"]
    assert sorted(snapshots(*command, "--json").json) == ["train", "valid"]
    command = ["select", uri, "small", "--snapshot", "train", "--max-residues", "40"]
    snapshots(*command, "--apart-from", f"{uri}@valid", "--clusters", clusters)
    sizes = Dataset.open(uri, "small").index["num_res"].to_pylist()
    assert sizes and max(sizes) <= 40
    for wrong in ("--share=valid=1.5", "--share=valid=0", "--share=train=0.1", "--share=valid=x",
                  "--released=valid=2021-9-30", "--released=valid"):  # fmt: skip
        snapshots("split", uri, "--clusters", clusters, wrong, code=2)


def test_parts_by_date_hold_what_is_younger_and_in_clusters_that_are_younger_as_a_whole(
    tmp_path: Path,
) -> None:
    dates = ["2020-01-01", "2022-01-01", "2022-02-01", "2022-03-01", "", "2019-05-05"]
    uri = str(tmp_path / "dated")
    dated = enumerate(dates)
    published(uri, (random_record(n, chain_id=f"c{n}").replace(release_date=d) for n, d in dated))
    path = tmp_path / "clusters.txt"
    path.write_text("c0 c1\nc2 c3\nc4\nc5\n")
    cluster_file = Clusters(path)
    parts = split_chains(uri, cluster_file, {}, released=("valid", "2021-09-30"))
    members = {name: chains(uri, part) for name, part in parts.items()}
    assert members == {"valid": {"c2", "c3"}, "train": {"c0", "c5"}}
    reasons = {d["chain_id"]: d["reason"] for d in parts["valid"].manifest.dropped}
    assert reasons["c1"] == "released from 2021-09-30 on, and like c0 in train"
    assert reasons["c4"] == "release date unknown"
    by_date = split_chains(uri, None, {}, released=("valid", "2021-09-30"))
    assert chains(uri, by_date["valid"]) == {"c1", "c2", "c3"}
    assert chains(uri, by_date["train"]) == {"c0", "c5"}
    with pytest.raises(ValueError, match="no chain of the clusters"):
        split_chains(uri, cluster_file, {}, released=("valid", "2029-01-01"))
    with pytest.raises(ValueError, match="shares need clusters"):
        split_chains(uri, None, {"valid": 0.2})


@pytest.fixture
def few_clusters(tmp_path: Path) -> Path:
    path = tmp_path / "clusters.txt"
    path.write_text("1ABC_A 2xyz_B 3def_C\n\n4GHI_A\n5jkl_A 4ghi_a\n6MNO_A\n")
    return path


def test_what_is_shared_goes_by_clusters_a_chain_in_none_is_no_proof(few_clusters: Path) -> None:
    without = overlap(["1abc_A", "2xyz_B"], ["1ABC_a", "9zzz_Z"])
    assert without.shared == (("1abc_A", "1ABC_a"),) and not without.unclustered
    assert not overlap(["1abc_A"], ["2xyz_B"])
    cluster_file = Clusters(few_clusters)  # whatever the case, and for windows
    common = overlap(["1abc_A.v0", "6mno_A", "5jkl_A"], ["2XYZ_B.v3", "4ghi_A"], cluster_file)
    assert common.shared == (("1abc_A.v0", "2XYZ_B.v3"), ("5jkl_A", "4ghi_A"))
    assert not common.unclustered
    assert not overlap(["1abc_A", "6mno_A"], ["4ghi_A", "5jkl_A"], cluster_file)
    common = overlap(["6mno_A", "7new_A"], ["1abc_A", "8new.v1x_B"], cluster_file)
    assert common and not common.shared
    assert common.unclustered == ("7new_A", "8new.v1x_B")


def test_clusters_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(InputError, match=r"nowhere\.txt: No such file"):
        Clusters(tmp_path / "nowhere.txt")
    monkeypatch.setattr("evofeed.store.likeness._MAX_BYTES", 3)
    (tmp_path / "big.txt").write_text("1abc_A\n")
    with pytest.raises(InputError, match="above 3 bytes"):
        Clusters(tmp_path / "big.txt")


def test_the_command_lists_what_is_shared_exits_with_1(tmp_path: Path, few_clusters: Path) -> None:
    for name, seeds in (("train", range(3)), ("valid", range(2, 4))):
        published(tmp_path / name, map(random_record, seeds))
    uris = [str(tmp_path / "train"), str(tmp_path / "valid")]
    common = snapshots("overlap", *uris, "--json", code=1).json
    assert common == {"shared": [["chain2_A", "chain2_A"]], "unclustered": []}
    snapshots("remove", uris[1], "chain2_A")
    snapshots("overlap", *uris)
    output = snapshots("overlap", *uris, "--clusters", few_clusters, code=1).out
    assert "chain3_A  is in no cluster" in output
