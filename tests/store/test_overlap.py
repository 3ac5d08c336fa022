"""Train and test sets that share a chain or a cluster are distinguished from those that do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.store.records import published, random_record
from typer.testing import CliRunner

from evofeed.base.errors import InputError
from evofeed.store.commands import snapshots
from evofeed.store.overlap import Clusters, overlap


@pytest.fixture
def clusters(tmp_path: Path) -> Path:
    path = tmp_path / "clusters.txt"
    path.write_text("1ABC_A 2xyz_B 3def_C\n\n4GHI_A\n5jkl_A 4ghi_a\n6MNO_A\n")
    return path


def test_without_clusters_only_the_same_chain_counts() -> None:
    found = overlap(["1abc_A", "2xyz_B"], ["1ABC_a", "9zzz_Z"])
    assert found.shared == (("1abc_A", "1ABC_a"),) and not found.unclustered
    assert not overlap(["1abc_A"], ["2xyz_B"])


def test_a_shared_cluster_counts_whatever_the_case_and_for_windows(clusters: Path) -> None:
    known = Clusters(clusters)
    found = overlap(["1abc_A.v0", "6mno_A", "5jkl_A"], ["2XYZ_B.v3", "4ghi_A"], known)
    assert found.shared == (("1abc_A.v0", "2XYZ_B.v3"), ("5jkl_A", "4ghi_A"))
    assert not found.unclustered
    assert not overlap(["1abc_A", "6mno_A"], ["4ghi_A", "5jkl_A"], known)


def test_a_chain_in_no_cluster_is_no_proof_of_being_apart(clusters: Path) -> None:
    found = overlap(["6mno_A", "7new_A"], ["1abc_A", "8new.v1x_B"], Clusters(clusters))
    assert found and not found.shared
    assert found.unclustered == ("7new_A", "8new.v1x_B")


def test_clusters_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(InputError, match=r"nowhere\.txt: No such file"):
        Clusters(tmp_path / "nowhere.txt")
    monkeypatch.setattr("evofeed.store.overlap._MAX_BYTES", 3)
    (tmp_path / "big.txt").write_text("1abc_A\n")
    with pytest.raises(InputError, match="above 3 bytes"):
        Clusters(tmp_path / "big.txt")


def test_the_command_lists_what_is_shared_and_exits_with_one(
    tmp_path: Path, clusters: Path
) -> None:
    for name, seeds in (("train", range(3)), ("valid", range(2, 4))):
        published(tmp_path / name, map(random_record, seeds))
    both = [str(tmp_path / "train"), str(tmp_path / "valid")]
    done = CliRunner().invoke(snapshots, ["overlap", *both, "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {"shared": [["chain2_A", "chain2_A"]], "unclustered": []}
    run = CliRunner().invoke(snapshots, ["remove", both[1], "chain2_A"])
    assert run.exit_code == 0
    assert CliRunner().invoke(snapshots, ["overlap", *both]).exit_code == 0
    done = CliRunner().invoke(snapshots, ["overlap", *both, "--clusters", str(clusters)])
    assert done.exit_code == 1 and "chain3_A  is in no cluster" in done.stdout
