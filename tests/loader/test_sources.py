"""Complexes, entries of each project and hooks are loaded as chains are: by any ranks, from any
state, around any damage."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.loader.complexes import three_complexes
from tests.loader.records import small_dataset
from tests.loader.streams import CONFIG, take
from tests.loader.test_complexes import CONFIG as COMPLEXES
from tests.loader.test_hooks import EVERY
from tests.store.records import flip
from tests.synthetic_entries import dataset_uri

from evofeed.base.errors import CannotResume, LoaderError
from evofeed.loader import EntryConfig, FeatureLoader, LoaderConfig, LoaderHooks
from evofeed.store import Dataset
from evofeed.store.inner import COLUMN_NUMBER

pytestmark = pytest.mark.system
SHORT = {"epoch_len": 4, "global_batch_size": 2}
OPENFOLD3 = EntryConfig.openfold3(token_budget=32, used_rows=16)
CONFIGS = {
    "chains": CONFIG.replace(**SHORT),
    "complexes": COMPLEXES.replace(**SHORT),
    "openfold3": LoaderConfig.openfold3(entries=OPENFOLD3, **SHORT),
    "boltz": LoaderConfig.boltz(
        entries=EntryConfig.boltz(max_tokens=32, max_atoms=512, max_seqs=16, symmetries=True),
        **SHORT,
    ),
    "protenix": LoaderConfig.protenix(entries=EntryConfig.protenix(crop_size=32), **SHORT),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chains and complexes; the entries are shared and must not be changed."""
    root = tmp_path_factory.mktemp("sources")
    small_dataset(root / "chains")
    three_complexes(root / "complexes")
    return root


def open_loader(kind: str, folder: Path, **options: Any) -> FeatureLoader:
    uri = dataset_uri() if kind in ("openfold3", "boltz", "protenix") else folder / kind
    dataset = Dataset.open(options.pop("uri", uri))
    sources = {"chains": dataset, "complexes": dataset.assemblies}
    config = options.pop("config", CONFIGS[kind])
    fixed = {"device": "cpu", "seed": 3, "prefetch": 2, "ready": 1}
    options = {"reader": "thread", **fixed, **options}
    return FeatureLoader(sources.get(kind, dataset.entries), config, **options)


@pytest.mark.parametrize(
    ("kind", "worlds", "hooks", "other", "why"),
    [
        ("complexes", "12", None, {"kind": "chains", "config": CONFIGS["complexes"]}, "snapshots"),
        ("openfold3", "21", None, {"config": CONFIGS["openfold3"].replace(crop_size=9)}, "config"),
        ("boltz", "12", None, {"seed": 4}, "seed"),
        ("protenix", "12", None, {"seed": 4}, "seed"),
        ("chains", "12", dataclasses.replace(EVERY, transform=None), {"hooks": None}, "hooks"),
        ("chains", "11", EVERY, {"hooks": LoaderHooks(name="e2", crop=EVERY.crop)}, "hooks"),
        ("chains", "3212", None, {"seed": 4}, "seed"),
    ],
)
def test_ranks_that_go_on_from_a_state_have_the_rest_of_the_stream(
    folder: Path, kind: str, worlds: str, hooks: Any, other: dict[str, Any], why: str
) -> None:
    """Each world takes a step, half an epoch, and goes on where another was; the last takes two.

    Of that one the first rank reads in a process what threads began.
    """
    step = 6 if "3" in worlds else 2
    config = CONFIGS[kind].replace(epoch_len=2 * step, global_batch_size=step)
    options: dict[str, Any] = {"kind": kind, "folder": folder, "hooks": hooks, "config": config}
    with open_loader(**options) as loader:
        full = take(loader, step * (len(worlds) + 1))
    assert len(set(full)) > 3
    state, stitched = None, list[str]()
    for number, world in enumerate(map(int, worlds), 1):
        is_last, ranks = number == len(worlds), []
        for rank in range(world):
            reader = "process" if is_last and not rank else "thread"
            with open_loader(**options, rank=rank, world_size=world, reader=reader) as loader:
                if state:
                    loader.load_state_dict(state)
                ranks.append(take(loader, (2 if is_last else 1) * step // world))
                after = json.loads(json.dumps(loader.state_dict()))
        state = after
        stitched += [sample for batches in zip(*ranks, strict=True) for sample in batches]
    assert stitched == full
    assert state is not None
    loader = open_loader(**options | other)
    with loader, pytest.raises(CannotResume, match=why):
        loader.load_state_dict(state)


def spoiled(kind: str, uri: Path) -> tuple[set[str], str]:
    """Flips a byte of one record; returns the unreadable samples and the name in the warning."""
    dataset = Dataset.open(uri)
    drawn = open_loader(kind, uri.parent, uri=uri).planner.sample(0, 0).row
    if kind == "openfold3":
        span = dataset.entries.span("entry", "s001-1")
        flip(uri / span.key, span.offset + span.nbytes // 2)
        return {"s001-1"}, "s001-1"
    spans = dataset.spans if kind == "chains" else dataset.assemblies.members
    row = drawn if kind == "chains" else spans.row("1abc_B.pairing")
    msa = spans.starts[row][COLUMN_NUMBER["msa"]]
    flip(uri / spans.key(row), int(spans.offset[row] + msa) + 30)
    if kind == "chains":
        return {list(dataset)[row]}, list(dataset)[row]
    return {"1abc", "3ghi"}, "1abc_B.pairing"


@pytest.mark.parametrize("kind", ["chains", "complexes", "openfold3"])
def test_what_is_damaged_is_named_counted_and_replaced_alike_everywhere(
    folder: Path, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uri = tmp_path / "data"
    shutil.copytree(dataset_uri() if kind == "openfold3" else folder / kind, uri)
    bad, named = spoiled(kind, uri)
    with open_loader(kind, folder) as loader:
        sound, planner = take(loader, 8), loader.planner
    rows = [planner.sample(*divmod(number, 4)).row for number in range(8)]
    gone = [planner.catalogs[0].location(row).chain_id in bad for row in rows]
    with open_loader(kind, folder, uri=uri) as loader:
        substituted, stats = take(loader, 8), loader.stats()
    assert [a != b for a, b in zip(sound, substituted, strict=True)] == gone
    assert stats["substituted_samples"] >= sum(gone) > 0
    assert all(named in line and ".arrow" in line for line in stats["bad_chains"])
    assert any(named in record.getMessage() for record in caplog.records)
    options = {"uri": uri, "reader": "process", "num_threads": 1, "prefetch": 1, "world_size": 2}
    with open_loader(kind, folder, **options) as loader:
        assert take(loader, 4) == substituted[::2]
    none = CONFIGS[kind].replace(max_bad_chains=0)
    loader = open_loader(kind, folder, uri=uri, config=none)
    with loader, pytest.raises(LoaderError, match="max_bad_chains=0") as end:
        take(loader, 8)
    assert named in str(end.value)
