"""`evofeed snapshots` from the command line."""

from __future__ import annotations

import json

import pytest
from tests.conftest import exit_code
from tests.store.records import flip, published, random_record
from typer.testing import CliRunner

from evofeed.base.errors import ChainMissing, DatasetMissing, RefConflict, ShardCorrupt
from evofeed.store import Dataset, write_shard
from evofeed.store.commands import snapshots


@pytest.fixture
def uri(tmp_path):
    published(tmp_path / "data", map(random_record, range(3)))
    return str(tmp_path / "data")


def run(app, *args, code=0):
    done = CliRunner().invoke(app, list(args))
    assert done.exit_code == code, done.output
    return done.output


def test_every_command_has_help_with_an_example():
    for command in snapshots.registered_commands:
        name = command.name or command.callback.__name__
        text = run(snapshots, name, "--help")
        assert "Example: evofeed" in text and "--json" in text, name


def test_ls_diff_tag_and_verify_tell_people_and_programs(uri):
    run(snapshots, "tag", uri, "v1")
    run(snapshots, "remove", uri, "chain1_A")
    rows = json.loads(run(snapshots, "ls", uri, "--json"))
    assert [row["refs"] for row in rows] == [["main"], ["v1"]]
    done = CliRunner().invoke(snapshots, ["remove", uri, "chain1_A", "--ref", rows[1]["digest"]])
    assert isinstance(done.exception, RefConflict)
    assert "there is no ref" in str(done.exception) and "to move" in str(done.exception)
    assert rows[0]["chains"] == 2 and rows[0]["parent"] == rows[1]["digest"]
    assert "3 chains" in run(snapshots, "ls", uri)
    assert json.loads(run(snapshots, "diff", uri, "v1", "--json"))["removed"] == ["chain1_A"]
    assert "- chain1_A" in run(snapshots, "diff", uri, "v1")
    assert "0 faults" in run(snapshots, "verify", uri, "--deep")


def test_chains_are_listed_and_one_that_is_not_there_is_a_typed_error(uri):
    rows = json.loads(run(snapshots, "chains", uri, "--json"))
    dataset = Dataset.open(uri)
    assert [row["chain_id"] for row in rows] == list(dataset)
    assert [row["num_res"] for row in rows] == [dataset[row["chain_id"]].num_res for row in rows]
    assert "chain1_A" in run(snapshots, "chains", uri)
    for wrong in ("nope", 99):
        with pytest.raises(ChainMissing) as caught:
            dataset[wrong]
        assert isinstance(caught.value, KeyError) and str(wrong) in str(caught.value)


def test_damage_is_listed_and_exits_with_one(uri):
    dataset = Dataset.open(uri)
    path = dataset.storage.path(dataset.spans.key(0))
    flip(path, int(dataset.spans.offset[1]) + 400)
    reported = run(snapshots, "verify", uri, code=1)
    assert "chain1_A" in reported and reported.splitlines()[-1].startswith("to repair: ")
    values = json.loads(run(snapshots, "verify", uri, "--deep", "--json", code=1))
    assert {fault["type"] for fault in values["faults"]} == {"ShardCorrupt"}
    text = run(snapshots, "verify", "ftp://x", code=2)
    assert text.startswith("evofeed: ") and len(text.splitlines()) == 1


def test_gc_says_first_and_removes_only_when_asked(uri):
    entry = write_shard(uri, [random_record(9)])
    assert "would remove 2 files" in run(snapshots, "gc", uri, "--grace-days", "0")
    report = json.loads(run(snapshots, "gc", uri, "--grace-days", "0", "--delete", "--json"))
    assert f"shards/{entry.name}" in report["removed"]


def test_the_beginning_of_a_digest_names_a_snapshot(uri):
    digest = Dataset.open(uri).digest
    assert run(snapshots, "chains", uri, "--snapshot", digest[:12]) == run(snapshots, "chains", uri)
    for unknown in (digest[:7], "0" * 12):
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
    (row,) = json.loads(run(snapshots, "ls", uri, "--json"))
    run(snapshots, "tag", uri, "main", "--snapshot", row["digest"])
    assert Dataset.open(uri).digest == dataset.digest


def test_a_ref_to_a_snapshot_that_is_gone_is_listed(uri):
    lost = "0" * 64
    storage = Dataset.open(uri).storage
    storage.path("refs/old").write_text(json.dumps({"digest": lost}))
    assert "000000000000  is not here, though it should be  old" in run(snapshots, "ls", uri)
    with pytest.raises(DatasetMissing, match="`evofeed snapshots ls` lists"):
        Dataset.open(uri, "old")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["verify", "{}/nothing"], "no ref 'main': there is no such folder"),
        (["chains", "{}/data", "--snapshot", "v2"], "no ref 'v2': its refs are main\n"),
        (["ls", "{}/empty"], "nothing is published here"),
        (["gc", "{}/empty"], "no dataset is here"),
        (["gc", "{}/nothing"], "no dataset is here"),
    ],
)
def test_what_is_not_there_is_one_line_that_names_what_is(uri, tmp_path, capsys, words, says):
    (tmp_path / "empty").mkdir()
    assert exit_code("snapshots", *(word.format(tmp_path) for word in words)) == 1
    assert says in capsys.readouterr().err
