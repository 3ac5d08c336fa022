"""`evofeed snapshots` from the command line, and the data card of a snapshot."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import evofeed
from tests.store.records import flip, published, random_record

from evofeed.base.errors import ChainMissing, DatasetMissing, ShardCorrupt
from evofeed.store import Dataset, dataset_card, write_shard

snapshots = partial(evofeed, "snapshots")


@pytest.fixture
def uri(tmp_path):
    published(tmp_path / "data", map(random_record, range(3)))
    return str(tmp_path / "data")


def test_ls_diff_tag_and_verify_tell_people_and_programs(uri):
    snapshots("tag", uri, "v1")
    snapshots("remove", uri, "chain1_A")
    rows = snapshots("ls", uri, "--json").json
    assert [row["refs"] for row in rows] == [["main"], ["v1"]]
    refused = snapshots("remove", uri, "chain1_A", "--ref", rows[1]["digest"], code=1).err
    assert "there is no ref" in refused and "to move" in refused
    assert rows[0]["chains"] == 2 and rows[0]["parent"] == rows[1]["digest"]
    assert "3 chains" in snapshots("ls", uri).out
    assert snapshots("diff", uri, "v1", "--json").json["removed"] == ["chain1_A"]
    assert "- chain1_A" in snapshots("diff", uri, "v1").out
    assert "0 faults" in snapshots("verify", uri, "--deep").out


def test_chains_are_listed_and_one_that_is_not_there_is_a_typed_error(uri):
    rows = snapshots("chains", uri, "--json").json
    dataset = Dataset.open(uri)
    assert [row["chain_id"] for row in rows] == list(dataset)
    assert [row["num_res"] for row in rows] == [dataset[row["chain_id"]].num_res for row in rows]
    assert "chain1_A" in snapshots("chains", uri).out
    for wrong in ("nope", 99):
        with pytest.raises(ChainMissing) as caught:
            dataset[wrong]
        assert isinstance(caught.value, KeyError) and str(wrong) in str(caught.value)


def test_a_dataset_is_named_with_its_ref_in_every_command_that_reads_one(uri, tmp_path):
    snapshots("tag", uri, "v1")
    snapshots("remove", uri, "chain1_A")
    assert "chain1_A" in snapshots("chains", f"{uri}@v1").out
    assert "chain1_A" not in snapshots("chains", uri).out
    assert "3 chains" in snapshots("verify", f"{uri}@v1").out
    assert "chain1_A  chain1_A" in snapshots("overlap", *[f"{uri}@v1"] * 2, code=1).out
    assert "3 chains" in snapshots("copy", f"{uri}@v1", str(tmp_path / "copied")).out
    for command in ("snapshots card", "snapshots tag", "snapshots select", "plan", "entries ls"):
        words = [*command.split(), f"{uri}@none", *["new"] * (command[-3:] in ("tag", "ect"))]
        assert "no ref 'none'" in evofeed(*words, code=1).err, command
    snapshots("chains", f"{uri}@v1", "--snapshot", "main")
    snapshots("chains", f"{uri}@v1", "--snapshot", "v2", code=2)
    snapshots("copy", uri, f"{uri}@v1")  # and a folder of that very name is that folder
    assert "chain1_A" not in snapshots("chains", f"{uri}@v1").out


def test_damage_is_listed_and_exits_with_one(uri):
    dataset = Dataset.open(uri)
    path = dataset.storage.path(dataset.spans.key(0))
    flip(path, int(dataset.spans.offset[1]) + 400)
    reported = snapshots("verify", uri, code=1).out
    assert "chain1_A" in reported and reported.splitlines()[-1].startswith("to repair: ")
    values = snapshots("verify", uri, "--deep", "--json", code=1).json
    assert {fault["type"] for fault in values["faults"]} == {"ShardCorrupt"}


def test_gc_says_first_and_removes_only_when_asked(uri):
    entry = write_shard(uri, [random_record(9)])
    assert "would remove 2 files" in snapshots("gc", uri, "--grace-days", "0").out
    report = snapshots("gc", uri, "--grace-days", "0", "--delete", "--json").json
    assert f"shards/{entry.name}" in report["removed"]


def test_the_beginning_of_a_digest_names_a_snapshot(uri):
    digest = Dataset.open(uri).digest
    assert snapshots("chains", uri, "--snapshot", digest[:12]) == snapshots("chains", uri)
    for unknown in (digest[:7], "0" * 12, "v2"):
        with pytest.raises(DatasetMissing, match="its refs are main"):
            Dataset.open(uri, unknown)


def test_a_damaged_ref_can_be_put_back_by_what_its_error_says(uri):
    dataset = Dataset.open(uri)
    ref = dataset.storage.path("refs/main")
    for damage in ("", "hello", '{"digest": "12"}'):
        ref.write_text(damage)
        with pytest.raises(ShardCorrupt, match="remove this file; then `evofeed snapshots tag"):
            Dataset.open(uri)
    ref.unlink()
    (row,) = snapshots("ls", uri, "--json").json
    snapshots("tag", uri, "main", "--snapshot", row["digest"])
    assert Dataset.open(uri).digest == dataset.digest


def test_a_ref_to_a_snapshot_that_is_gone_is_listed(uri):
    lost = "0" * 64
    storage = Dataset.open(uri).storage
    storage.path("refs/old").write_text(json.dumps({"digest": lost}))
    assert "000000000000  is not here, though it should be  old" in snapshots("ls", uri).out
    with pytest.raises(DatasetMissing, match="`evofeed snapshots ls` lists"):
        Dataset.open(uri, "old")


DROPPED = [
    {"chain_id": f"9z{n:02d}_A", "reason": f"structures/9z{n:02d}.cif:{n + 7}: no chain 'A'"}
    for n in range(4)
] + [{"chain_id": "1bad_B", "reason": "no <b>structure | at all"}]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    records = [
        random_record(seed, chain_id=f"c{seed:03d}_A", has_structure=seed > 1) for seed in range(12)
    ]
    config = {"featurize": {"max_template_date": "2018-04-30", "msa": {"rows": 7}}}
    commit = {"config": config, "dropped": DROPPED, "cluster_sizes": {"c000_A": 3}}
    published(tmp_path / "pdb", records, **commit)
    return Dataset.open(str(tmp_path / "pdb"))


def test_a_card_counts_what_is_there_and_what_is_not(dataset: Dataset) -> None:
    card = dataset_card(
        dataset, notes={"c1": ["template 1xyz_A: too new", "template 2xyz_B: too new"]}
    )
    records = [dataset[chain] for chain in dataset]
    assert (card.name, card.chains, card.digest) == ("pdb", 12, dataset.digest)
    assert card.residues == sum(r.num_res for r in records)
    assert card.cells == sum(r.num_res * r.num_alignments for r in records)
    assert card.with_structure == 10
    assert card.predicted == sum(r.is_distillation and r.num_res > 0 for r in records[2:])
    assert card.columns["cluster_size"]["known"] == 1
    assert [(kind.count, kind.reason) for kind in card.left_out] == [
        (4, "… no chain …"),
        (1, "no <b>structure | at all"),
    ]
    assert card.num_left_out == 5 and card.left_out[0].examples[0].startswith("9z00_A: structures/")
    assert [kind.count for kind in card.notes] == [2]
    date = {"featurize.max_template_date": '"2018-04-30"'}
    assert card.settings == {**date, "featurize.msa.rows": "7"}
    assert json.loads(json.dumps(card.to_dict()))["chains"] == 12


def test_text_from_files_is_no_markup_in_a_card(dataset: Dataset) -> None:
    text = dataset_card(dataset, name="a | b", license_name="CC0-1.0").to_markdown("card.png")
    assert "![what is in it, and what is not](card.png)" in text
    rows = [line for line in text.splitlines() if "at all" in line]
    assert rows == [r"| 1 | no &lt;b>structure \| at all | 1bad_B: no &lt;b>structure \| at all |"]


def test_the_command_writes_the_card_and_its_plots(dataset: Dataset, tmp_path: Path) -> None:
    out, report = tmp_path / "card", tmp_path / "report.json"
    report.write_text(json.dumps({"notes": {"c1": ["rows: 12 duplicates"]}}))
    snapshots("card", dataset.uri, "--out", out, "--report", report, "--json")
    assert sorted(p.name for p in out.iterdir()) == ["README.md", "card.png"]
    assert (out / "card.png").read_bytes().startswith(b"\x89PNG")
    assert "rows: … duplicates" in (out / "README.md").read_text()
    assert "5 chains" in snapshots("card", dataset.uri).out


def test_a_snapshot_of_no_chains_has_a_card(tmp_path: Path) -> None:
    published(tmp_path / "none", [], dropped=DROPPED)
    card = dataset_card(Dataset.open(str(tmp_path / "none")))
    assert (card.chains, card.residues, card.num_left_out) == (0, 0, 5)
    snapshots("card", tmp_path / "none", "--out", tmp_path / "card")
