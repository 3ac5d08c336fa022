"""Boltz's prepared set as an input: its own rows, exactly, and samples."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import exit_code
from tests.featurize.entries.boltz_set import write_set
from tests.loader.views.packs import packs, read, recordings

from evofeed.base.errors import InputError
from evofeed.featurize.entries.alignments import read_alignment
from evofeed.featurize.entries.input import EntriesInput
from evofeed.featurize.entries.job import prepare_entries
from evofeed.loader import EntryConfig, LoaderConfig
from evofeed.loader.entries.catalog import EntryCatalog
from evofeed.loader.entries.reading import plan_entry
from evofeed.loader.views.boltz.rows import CODES
from evofeed.store import Dataset


@pytest.mark.parametrize("path", recordings("boltz/msa/*.npz"), ids=lambda path: path.stem)
def test_rows_of_a_prepared_alignment_are_boltzs(path: Path, tmp_path: Path) -> None:
    pack = path.parent.parent.parent
    folder = write_set(tmp_path, pack, [path.stem.split("_")[0]])
    rows, table = read_alignment([str(folder / "msa" / path.name)]), read(path).arrays
    width = rows.num_columns
    theirs = table["residues.res_type"].reshape(-1, width)
    np.testing.assert_array_equal(CODES[rows.letters[rows.row_letters]], theirs)
    taxa = [int(rows.species[one]) if one >= 0 else -1 for one in rows.row_species.tolist()]
    assert taxa == table["sequences.taxonomy"].tolist()
    dense = np.zeros(theirs.shape, np.int32)
    sizes = table["sequences.del_end"] - table["sequences.del_start"]
    which = np.repeat(np.arange(len(dense)), sizes)
    dense[which, table["deletions.res_idx"]] = table["deletions.deletion"]
    np.testing.assert_array_equal(rows.dense_deletions(np.arange(len(dense))), dense)


def test_a_prepared_set_is_recognised_and_gives_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = packs()[0]
    folder = write_set(tmp_path / "targets", pack, ["2x1f", "1pfe"])
    damaged = (folder / "structures" / "2x1f.npz").read_bytes()[:5000]
    (folder / "structures" / "bad.npz").write_bytes(damaged)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["records"].append({**manifest["records"][0], "id": "bad"})
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (dictionary,) = (pack / "components").glob("components.cif*")
    components = ["--components", str(dictionary)]
    where = [str(folder), str(tmp_path / "data")]
    exit_code("entries", "prepare", *where, *components, "--executor", "local", "--json")
    report = json.loads(capsys.readouterr().out)
    assert report["state"] == "published"
    assert [one["chain_id"] for one in report["broken"]] == ["bad"]
    assert "no readable npz" in report["broken"][0]["message"]
    entries = Dataset.open(str(tmp_path / "data")).entries
    assert list(entries) == ["1pfe", "2x1f"]
    assert set(entries.datapoints["cluster_a"].to_pylist()) >= {"p6"}
    orders = entries.molecules("boltz")
    assert len(orders["PHE"].orders) == 2  # ours, for the set has none
    rules = EntryConfig.boltz()
    config = LoaderConfig(entries=rules, max_resolution=float("inf"))
    catalog = EntryCatalog(entries, 0, config)
    for row in catalog.rows.tolist():
        packed, _ = plan_entry(entries.dataset.storage, catalog.place(row), row, rules)
        assert len(packed)


def test_other_rules_than_boltzs_are_refused(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "targets", packs()[0], ["2x1f"])
    source = EntriesInput(structures=str(folder), components="x", projects=("protenix",))
    with pytest.raises(InputError, match="rules alone"):
        prepare_entries(source, str(tmp_path / "data"))
