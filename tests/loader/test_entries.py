"""Batches of full entries from the store, the same for any reader and number of threads."""

from __future__ import annotations

import time
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from tests.loader.streams import take, whole_digest
from tests.synthetic_entries import dataset_uri

from evofeed.base.errors import LoaderError
from evofeed.loader import FeatureLoader, LoaderConfig, boltz_batch, openfold3_batch, protenix_batch
from evofeed.loader.config import EntryConfig
from evofeed.loader.entries import reading
from evofeed.loader.entries.catalog import EntryCatalog, EntryLocation
from evofeed.loader.entries.reading import plan_entry
from evofeed.loader.sample_draws import SampleDraws
from evofeed.loader.views.openfold3.plan import plan_sample
from evofeed.loader.views.openfold3.tables import openfold3_view
from evofeed.protein.datapoints import alignment_names
from evofeed.store import Dataset

pytestmark = pytest.mark.system

RULES = EntryConfig.openfold3(token_budget=32, used_rows=16)


def config(**changes: Any) -> LoaderConfig:
    return LoaderConfig.openfold3(
        **{"entries": RULES, "epoch_len": 8, "global_batch_size": 2, **changes}
    )


def loader(**changes: Any) -> FeatureLoader:
    settings = changes.pop("config", None) or config()
    options = {"device": "cpu", "reader": "thread", "seed": 3, "prefetch": 2, **changes}
    return FeatureLoader(Dataset.open(dataset_uri()).entries, settings, **options)


def test_a_batch_is_what_openfold3s_training_step_takes() -> None:
    with loader() as first:
        batch = openfold3_batch(next(iter(first)))
    assert batch["restype"].shape == (1, 32, 32)
    assert batch["msa"].shape[2:] == (32, 32)
    assert batch["msa"].shape[1] == 16
    assert int(batch["token_mask"].sum()) == 32
    assert batch["pdb_id"][0].startswith("s00")
    assert batch["ground_truth"]["atom_positions"].shape[0] == 1
    assert isinstance(batch["preferred_chain_or_interface"][0], str | list)


def test_a_batch_is_what_boltzs_training_step_takes() -> None:
    def settings(**changes: Any) -> LoaderConfig:
        view = EntryConfig.boltz(max_tokens=32, max_atoms=512, max_seqs=16, **changes)
        return LoaderConfig.boltz(entries=view, epoch_len=4, batch_size=2)

    with loader(config=settings()) as first, loader(config=settings(symmetries=True)) as second:
        batches, more = ([boltz_batch(batch) for batch in each] for each in (first, second))
    shared = [{name: batch[name] for name in batches[0]} for batch in more]
    assert whole_digest(shared) == whole_digest(batches)
    lists = {"chain_symmetries", "amino_acids_symmetries", "ligand_symmetries"}
    atoms = {"all_coords", "all_resolved_mask", "crop_to_all_atom_map"}
    assert more[0].keys() - batches[0].keys() == lists | atoms
    assert all(any(sample for batch in more for sample in batch[name]) for name in lists)
    index = more[0]["crop_to_all_atom_map"][0].long()
    coords, present = more[0]["coords"][0, 0, : len(index)], more[0]["atom_resolved_mask"][0]
    assert present[: len(index)].equal(more[0]["all_resolved_mask"][0][index].bool())
    centered = more[0]["all_coords"][0][index]
    centered = centered - centered[present[: len(index)]].mean(0)
    torch.testing.assert_close(coords, centered, rtol=0, atol=1e-4)
    assert batches[0]["msa"].shape == (2, 16, 32, 33)
    assert batches[0]["ref_pos"].shape == (2, 512, 3)
    assert batches[0]["token_pad_mask"].sum() > 20


def test_a_batch_is_what_protenixs_training_step_takes_with_every_polymers_sequence() -> None:
    settings = LoaderConfig.protenix(entries=EntryConfig.protenix(crop_size=64), epoch_len=12)
    nucleic = 0
    with loader(config=settings) as first:
        for batch in map(protenix_batch, first):
            features = batch["input_feature_dict"]
            assert 0 < len(features["token_index"]) <= 64
            assert batch["label_dict"]["coordinate"].shape[1] == 3
            first = features["atom_to_token_idx"]
            for kind in ("is_protein", "is_rna", "is_dna"):
                tokens = torch.unique(first[features[kind].bool()])
                shown = features["msa"][0, tokens]
                assert torch.equal(shown, features["restype"][tokens].argmax(1).to(shown.dtype))
                nucleic += len(tokens) if kind != "is_protein" else 0
    assert nucleic


def test_a_sample_is_the_plan_of_its_record_at_its_position() -> None:
    entries = Dataset.open(dataset_uri()).entries
    catalog = EntryCatalog(entries, 0, config())
    for row in catalog.rows[:6].tolist():
        location = catalog.location(row)
        packed, _ = plan_entry(entries.dataset.storage, location, 77, RULES)
        record = entries[location.chain_id]
        section = entries.section(location.chain_id, "openfold3")
        names = {
            entity: name
            for entity, name in alignment_names(record, section).items()
            if name in set(entries.names("alignment"))
        }
        view = openfold3_view(record, section, entries.molecules("openfold3"), names)
        alignments = [entries.alignment(name) for name in view.alignments]
        again = plan_sample(view, alignments, location.datapoint, SampleDraws(77), RULES.view)
        assert packed.keys() == again.keys()
        for name, value in packed.items():
            np.testing.assert_equal(value, again[name], name)


def test_a_sample_that_no_slot_can_hold_comes_beside_it_and_is_the_same() -> None:
    small = EntryConfig(
        project="openfold3", view=RULES.view, resolution_required=True, slot_nbytes=512
    )
    with loader() as first, loader(config=config(entries=small), reader="process") as second:
        assert take(first, 8) == take(second, 8)


def test_a_draw_without_a_sample_is_replaced_alike_whatever_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A chain without a sample for one key is still read for other keys, whatever the timing."""

    def plan(storage: Any, location: EntryLocation, key: int, rules: EntryConfig) -> Any:
        drawn = zlib.crc32(f"{key} {location.chain_id} {location.datapoint}".encode())
        if drawn % 2:
            time.sleep(delay * (drawn % 5))
            refused.add(location.chain_id)
            raise LoaderError("there is no sample", item=location.chain_id)
        return plan_entry(storage, location, key, rules)

    monkeypatch.setattr(reading, "plan_entry", plan)
    digests = []
    for delay in (0.0, 0.01):  # noqa: B007 - `plan` has it
        refused = set[str]()
        with loader(config=config(epoch_len=12), num_threads=3, prefetch=4) as first:
            batches = list(first)
            assert first.stats()["substituted_samples"] > 2
        assert refused & {name for batch in batches for name in batch["entry_id"]}
        digests.append(whole_digest(batches))
    assert digests[0] == digests[1]


def test_epochs_and_seeds_draw_other_samples_and_the_weights_decide() -> None:
    long = config(epoch_len=4000)
    entries = Dataset.open(dataset_uri()).entries
    catalog = EntryCatalog(entries, 0, long)
    rows = catalog.probability.rows(3, 0, 0, 4000)  # type: ignore[union-attr]
    assert not np.array_equal(rows, catalog.probability.rows(3, 1, 0, 4000))  # type: ignore[union-attr]
    assert not np.array_equal(rows, catalog.probability.rows(4, 0, 0, 4000))  # type: ignore[union-attr]
    weights = catalog._weights(RULES)
    share = np.bincount(rows, minlength=len(weights)) / 4000
    sigma = np.sqrt(weights / weights.sum() / 4000)
    assert (np.abs(share - weights / weights.sum()) < 5 * sigma).all()


def test_filters_leave_out_entries_and_say_so_if_none_is_left() -> None:
    entries = Dataset.open(dataset_uri()).entries
    everything = EntryCatalog(entries, 0, config())
    assert everything.chain_ids() == ["s000-1", "s001-1", "s002-1"]
    fine = EntryCatalog(entries, 0, config(max_resolution=1.85))
    assert fine.chain_ids() == ["s000-1"]
    named = EntryCatalog(entries, 0, config(chains=("s002-1",)))
    assert named.chain_ids() == ["s002-1"]
    with pytest.raises(LoaderError, match=r"none of 3 entries.*release date: 3"):
        EntryCatalog(entries, 0, config(released_until="2001-01-01"))


def test_chains_and_entries_are_not_mixed_up() -> None:
    dataset = Dataset.open(dataset_uri())
    with pytest.raises(ValueError, match=r"dataset\.entries"):
        FeatureLoader(dataset, config(), device="cpu")
    with pytest.raises(ValueError, match="openfold3"):
        FeatureLoader(dataset.entries, LoaderConfig(), device="cpu")
