"""A data card says what a snapshot holds and why the rest is not in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.store.records import published, random_record
from typer.testing import CliRunner

from evofeed.store import Dataset, dataset_card
from evofeed.store.commands import snapshots

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
    about = {"config": config, "dropped": DROPPED, "cluster_sizes": {"c000_A": 3}}
    published(tmp_path / "pdb", records, **about)
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
    assert card.settings == {
        "featurize.max_template_date": '"2018-04-30"',
        "featurize.msa.rows": "7",
    }
    assert json.loads(json.dumps(card.to_dict()))["chains"] == 12


def test_text_from_files_is_no_markup_in_a_card(dataset: Dataset) -> None:
    text = dataset_card(dataset, name="a | b", license_name="CC0-1.0").to_markdown("card.png")
    assert "![what is in it, and what is not](card.png)" in text
    rows = [line for line in text.splitlines() if "at all" in line]
    assert rows == [r"| 1 | no &lt;b>structure \| at all | 1bad_B: no &lt;b>structure \| at all |"]


def test_the_command_writes_the_card_and_its_plots(dataset: Dataset, tmp_path: Path) -> None:
    out, report = tmp_path / "card", tmp_path / "report.json"
    report.write_text(json.dumps({"notes": {"c1": ["rows: 12 duplicates"]}}))
    command = ["card", dataset.uri, "--out", str(out), "--report", str(report), "--json"]
    done = CliRunner().invoke(snapshots, command)
    assert done.exit_code == 0, done.output
    assert sorted(p.name for p in out.iterdir()) == ["README.md", "card.png"]
    assert (out / "card.png").read_bytes().startswith(b"\x89PNG")
    assert "rows: … duplicates" in (out / "README.md").read_text()
    plain = CliRunner().invoke(snapshots, ["card", dataset.uri])
    assert plain.exit_code == 0 and "5 chains" in plain.output


def test_a_snapshot_of_no_chains_has_a_card(tmp_path: Path) -> None:
    published(tmp_path / "none", [], dropped=DROPPED)
    card = dataset_card(Dataset.open(str(tmp_path / "none")))
    assert (card.chains, card.residues, card.num_left_out) == (0, 0, 5)
    done = CliRunner().invoke(
        snapshots, ["card", str(tmp_path / "none"), "--out", str(tmp_path / "card")]
    )
    assert done.exit_code == 0, done.output
