"""Templates on the tokens of a crop, compared with OpenFold3's functions on a recorded entry."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import own_packages
from tests.loader.views.made_entries import made_alignment, made_templates
from tests.loader.views.own_openfold3 import stand_ins
from tests.loader.views.packs import entry_view, read, some_recordings, template_features

from evofeed.featurize.entries.openfold3_templates import cached_templates
from evofeed.featurize.records.template_library import FolderUse
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.sample_draws import SampleDraws
from evofeed.loader.views.config import OpenFold3Config
from evofeed.loader.views.crop import Crop
from evofeed.loader.views.entry_view import ChainType, EntryView
from evofeed.loader.views.openfold3.templates import plan_templates
from evofeed.protein.alignment import Alignment
from evofeed.protein.components import ComponentTable

CORE = "openfold3.core.data"
CONFIG = OpenFold3Config(token_budget=128)
_MOLECULE_TYPES = np.array([0, 2, 1, 3])
"""OpenFold3's protein, RNA, DNA and ligand, by `ChainType`."""


def copies_with_templates() -> tuple[EntryView, list[Alignment]]:
    """The smallest recorded entry with copies of a protein, each with different templates."""
    for path in some_recordings("openfold3/structure/*.npz", 30):
        view = entry_view("openfold3", path.parents[2], path.stem)
        proteins = np.flatnonzero(view.chain_type == ChainType.PROTEIN)
        numbers = view.chain_alignment[proteins]
        if len(set(numbers.tolist())) < len(numbers) and view.num_tokens > CONFIG.token_budget:
            query = made_alignment("x", [], columns=int(np.diff(view.chain_residue).max()))
            parts = [made_templates(query.num_columns, seed) for seed in range(len(proteins))]
            chain_numbers = np.full(view.num_chains, -1, np.int32)
            chain_numbers[proteins] = np.arange(len(proteins))
            apart = dataclasses.replace(view, chain_alignment=chain_numbers)
            return apart, [query.with_templates(templates) for templates in parts]
    raise AssertionError("no recorded entry with copies")


@pytest.fixture
def openfold3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes OpenFold3 importable; skips the test if it is not installed."""
    stand_ins(monkeypatch)
    own_packages(monkeypatch, "openfold3")


def assert_features_equal(
    view: EntryView,
    tokens: np.ndarray,
    packed: dict[str, np.ndarray],
    theirs: Mapping[str, torch.Tensor],
) -> None:
    """Asserts that our template features equal OpenFold3's."""
    chain = view.residue_chain()[view.token_residue[tokens]]
    packed["asym_id"] = np.unique(chain, return_inverse=True)[1].astype(np.int32) + 1
    ours = template_features(packed, CONFIG)
    assert ours.keys() == theirs.keys()
    assert theirs["template_distogram"].sum() > 100
    for name, value in ours.items():
        assert value.shape == theirs[name].shape and value.dtype == theirs[name].dtype, name
        tolerance = 2e-6 if name == "template_unit_vector" else 0
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=tolerance)


class SeededDraws(SampleDraws):
    """Templates drawn as in OpenFold3, from numpy's global generator."""

    def permutation_and_size(
        self, purpose: Purpose, count: int, least: int
    ) -> tuple[np.ndarray, int]:
        size = min(np.random.randint(0, count + 1), CONFIG.max_templates)
        order = np.random.choice(count, size, replace=False) if size else np.zeros(0, int)
        return order, size


@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.slow
@pytest.mark.usefixtures("openfold3")
def test_a_template_cache_gives_what_openfold3_makes_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, alignments = copies_with_templates()
    length, count = alignments[0].num_columns, len(alignments)
    names = written_templates(tmp_path, length, count)
    (tmp_path / "template_structure_arrays" / names[1][:4] / f"{names[1]}.npz").unlink()
    cache, templates = tmp_path / "template_cache", []
    for number in range(count):
        cached = cache / f"q{number}.npz", length, ComponentTable({}), FolderUse()
        hits, notes = cached_templates(*cached)
        assert notes == [f"1 of {len(names)} templates passed over: no structure next to the cache"]
        assert hits.name == tuple(names) and set(hits.date) == {"2001-02-03"}
        templates.append(hits.until("2001-02-03"))
        assert len(templates[-1].name) == len(names) - 1 > 0
        assert hits.until("2001-02-03", limit=2).name == (names[0],)
    shuffled = np.random.default_rng(1).permutation(view.num_tokens)
    tokens = np.sort(shuffled[: CONFIG.token_budget])
    query = query_atoms(view, tokens)
    cropped = import_module(f"{CORE}.pipelines.sample_processing.template")
    chains = {
        name: {"alignment_representative_id": f"q{number}", "template_ids": names}
        for name, number in zip(view.chain_name.tolist(), view.chain_alignment, strict=True)
    }
    np.random.seed(2)
    slices = cropped.process_template_structures_of3(
        query, CONFIG.max_templates, False, CONFIG.min_template_tokens,
        cache, chains, None, tmp_path / "template_structure_arrays", "npz", None,
    )  # fmt: skip
    theirs = features_of(query, slices)
    np.random.seed(2)
    cached = [query.with_templates(hits) for query, hits in zip(alignments, templates, strict=True)]
    packed = plan_templates(view, cached, Crop.of(view, tokens), SeededDraws(0), CONFIG)
    assert_features_equal(view, tokens, packed, theirs)


def written_templates(folder: Path, length: int, count: int) -> list[str]:
    """Writes chains of recorded entries as atom arrays, and caches that align them to queries."""
    rng, caches, names = np.random.default_rng(0), [dict[str, Any]() for _ in range(count)], []
    (folder / "template_cache").mkdir()
    for path in some_recordings("openfold3/structure/*.npz", 30):
        arrays = read(path, "atom.").arrays
        protein = arrays["chain_id"][arrays["molecule_type_id"] == 0]
        if not len(protein) or len(names) == 6:
            continue
        columns = {
            k: v[arrays["chain_id"] == protein[0]] for k, v in arrays.items() if k != "bonds"
        }
        names.append(f"{path.stem}_{protein[0]}")
        target = folder / "template_structure_arrays" / path.stem
        target.mkdir(parents=True)
        np.savez(target / f"{names[-1]}.npz", **columns)
        residues = np.unique(columns["res_id"].astype(int))
        size = min(len(residues), length) * 3 // 4
        for cache in caches:
            pairs = [np.sort(rng.permutation(o)[:size]) for o in (np.arange(length) + 1, residues)]
            pairs = np.concatenate([np.stack(pairs, 1), [[-1, int(residues[0])]]])
            metadata = {"index": 9 - len(cache), "release_date": "2001-02-03", "idx_map": pairs}
            cache[names[-1]] = np.array(metadata, object)
    for number, cache in enumerate(caches):
        np.savez(folder / "template_cache" / f"q{number}.npz", allow_pickle=True, **cache)
    return names[::-1]


def features_of(query: Any, collection: Any) -> Mapping[str, torch.Tensor]:
    """Features of these template slices, by OpenFold3's featurizer."""
    featurization = import_module(f"{CORE}.pipelines.featurization.template")
    slots, size = CONFIG.max_templates, CONFIG.token_budget
    features: Mapping[str, torch.Tensor] = featurization.featurize_template_structures_of3(
        query, collection, slots, size, 3.25, 50.75, 39
    )
    return features


def query_atoms(view: EntryView, tokens: np.ndarray) -> Any:
    """One atom per token, with the annotations that OpenFold3 reads."""
    residue = view.token_residue[tokens]
    chain = view.residue_chain()[residue]
    return annotated(
        chain_id=view.chain_name[chain],
        res_id=view.residue_index[residue],
        res_name=view.residue_name[residue],
        molecule_type_id=_MOLECULE_TYPES[view.chain_type[chain]],
        entity_id=view.chain_entity[chain],
        token_id=np.arange(len(tokens)),
        token_position=np.arange(len(tokens)),
        atom_name=np.full(len(tokens), "CA"),
    )


def annotated(**columns: np.ndarray) -> Any:
    """A biotite `AtomArray` with these annotations."""
    atoms = import_module("biotite.structure").AtomArray(len(columns["res_id"]))
    for name, column in columns.items():
        atoms.set_annotation(name, column)
    return atoms


def test_chains_without_templates_or_of_few_tokens_draw_nothing_and_have_none() -> None:
    view, alignments = copies_with_templates()
    bare = [alignment.with_templates(None) for alignment in alignments]
    tokens = np.arange(view.num_tokens)
    assert plan_templates(view, bare, Crop.of(view, tokens), SampleDraws(1), CONFIG) == {}
    config = OpenFold3Config(min_template_tokens=view.num_tokens)
    assert plan_templates(view, alignments, Crop.of(view, tokens), SampleDraws(1), config) == {}
    sizes = {SampleDraws(key).permutation_and_size(Purpose.TEMPLATES, 7, 0)[1] for key in range(60)}
    assert sizes == set(range(8))
