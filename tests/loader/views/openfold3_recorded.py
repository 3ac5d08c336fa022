"""OpenFold3's recorded draws, replayed through the plan."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.loader.views.boltz_recorded import alignment_of, read_a3m
from tests.loader.views.packs import (
    Recording,
    SampleInputs,
    entry_view,
    openfold3_cache,
    recorded_calls,
)

from evofeed.loader.counter_rng import Purpose
from evofeed.loader.sample_draws import SampleDraws, rotations
from evofeed.loader.views.config import OpenFold3Config
from evofeed.loader.views.entry_view import EntryView
from evofeed.loader.views.openfold3.crop import crop_entry
from evofeed.loader.views.openfold3.features import openfold3_features
from evofeed.loader.views.openfold3.plan import plan_sample
from evofeed.protein.alignment import Alignment

planned, features_of = plan_sample, openfold3_features
CLOSE: dict[str, float] = {"feature.ref_pos": 1e-5}
RTOL = 0.0
STRATEGIES = ("contiguous", "spatial", "spatial_interface")


class RecordedDraws(SampleDraws):
    """Draws from a file; raises when asked in another order than recorded."""

    def __init__(self, view: EntryView, calls: list[tuple[str, Any]]) -> None:
        self.view = view
        self.calls = deque(calls)

    @classmethod
    def of_sample(cls, view: EntryView, sample: Recording) -> RecordedDraws:
        """The draws of a training sample: the calls of all sites in order."""
        calls: list[tuple[str, Any]] = []
        for site, value in recorded_calls(sample):
            name = site["site"][0].rsplit(":", 1)[1]
            if "value" in site:
                calls.append((name, {"value": value, "coord": site.get("coord")}))
            else:
                calls.append((f"{name}.{site['fn'].rsplit('.', 1)[1]}", value))
        return cls(view, calls)

    def _next(self, *names: str) -> Any:
        name, value = self.calls.popleft()
        assert name.startswith(names), (name, names)
        return value

    def _queue(self, name: str) -> list[Any]:
        """Removes and returns all results of a site."""
        results = [value for site, value in self.calls if site.startswith(name)]
        self.calls = deque(call for call in self.calls if not call[0].startswith(name))
        return results

    def choice(self, purpose: Purpose, values: np.ndarray, *, per_call: bool = False) -> int:
        assert purpose is Purpose.CROP_CENTRE
        value = self._next("crop_chainwise", "set_spatial")
        number = int(value.get("value", value)["token_id"])
        assert number in values
        return number

    def crop_strategy(self, weights: Sequence[float]) -> int:
        value = self._next("sample_crop_strategy")
        value = value["value"] if isinstance(value, dict) else value
        return STRATEGIES.index(value if isinstance(value, str) else value[0])

    def chain_order(self, count: int) -> Sequence[int]:
        value = self._next("set_contiguous")
        names = value["value"] if isinstance(value, dict) else value
        order = {name: number for number, name in enumerate(sorted(map(str, names)))}
        assert len(order) == count
        return [order[str(name)] for name in names]

    def integer_between(self, low: int, high: int) -> int:
        value = int(np.reshape(self._next("set_contiguous"), -1)[0])
        assert low <= value <= high, (low, value, high)
        return value

    def conformers(self, count: int, stored: int) -> np.ndarray:
        self._queue("_compute_conformer")
        assert count == stored
        return np.arange(count)

    def normal_moves(self, moved: np.ndarray, *_: Purpose) -> tuple[np.ndarray, np.ndarray]:
        turn = np.zeros([len(moved), 4], np.float32)
        shift = np.zeros([len(moved), 3], np.float32)
        turn[moved] = np.stack(self._queue("sample_rotations"))
        shift[moved] = np.stack(self._queue("centre_random_augmentation"))
        return rotations(turn), shift

    def permutation_and_size(
        self, purpose: Purpose, count: int, least: int
    ) -> tuple[np.ndarray, int]:
        assert purpose is Purpose.MAIN_ROWS
        size = int(self._next("create_main.randint"))
        rows = np.reshape(self._next("create_main.choice"), -1)
        assert len(rows) == size
        return rows, size


def crop_again(view: EntryView, metadata: dict[str, Any]) -> dict[str, Any]:
    """Another recorded crop, from the draws and with the names of the recording."""
    weights = tuple(float(name == metadata["method"]) for name in STRATEGIES)
    config = OpenFold3Config(
        token_budget=metadata["token_budget"], max_chains=metadata["n_chains"], crop_weights=weights
    )
    calls = [(call["site"].rsplit(":", 1)[1], call["result"]) for call in metadata["draws"]]
    draws = RecordedDraws(view, calls)
    crop = crop_entry(view, _datapoint(view, metadata["datapoint"]), draws, config)
    assert crop.strategy.name.lower() == metadata["strategy"] and not draws.calls
    return {"token_id": crop.tokens, "chains": view.chain_name[crop.chains]}


def _datapoint(view: EntryView, named: str | list[str]) -> tuple[int, ...]:
    """Rows of the one or two chains of a sample's datapoint."""
    names = [named] if isinstance(named, str) else named
    return tuple(int(np.flatnonzero(view.chain_name == name)[0]) for name in names)


def inputs_of(pack: Path, sample: Recording) -> SampleInputs:
    """The inputs of a recorded sample."""
    view = entry_view("openfold3", pack, sample.meta["entry"])
    alignments, point = recorded_alignments(pack, view), _datapoint(view, sample.meta["datapoint"])
    view = with_conformers(view, sample)
    config = OpenFold3Config(token_budget=sample.meta["token_budget"])
    return SampleInputs(view, alignments, point, RecordedDraws.of_sample(view, sample), config)


def named(features: dict[str, Any], sample: Recording) -> dict[str, Any]:
    """Features and permutations by the names of the recording."""
    orders = features["ref_space_uid_to_perm"]
    values: dict[str, Any] = {f"feature.{name}": value for name, value in flat(features).items()}
    return values | {
        "permutation.uid": list(orders),
        "permutation.rows": [order.shape[0] for order in orders.values()],
        "permutation.cols": [order.shape[1] for order in orders.values()],
        "permutation.values": [int(n) for order in orders.values() for n in order.ravel()],
    }


def flat(features: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tensors of nested tables by the dotted names of the recording."""
    flattened: dict[str, Any] = {}
    for name, value in features.items():
        if isinstance(value, dict) and name != "ref_space_uid_to_perm":
            flattened |= flat(value, f"{prefix}{name}.")
        elif not isinstance(value, dict):
            flattened[prefix + name] = value
    return flattened


SOURCES = {
    "pairing": "uniref90_hits",
    "non_pairing": "mgnify_hits",
    "uniprot_hits": "uniprot_hits",
    "rna": "rnacentral_hits",
}


def recorded_alignments(pack: Path, view: EntryView) -> list[Alignment]:
    """The alignments of an entry, their queries replaced by the sequences of its chains."""
    folders = openfold3_cache(pack)["alignment_of_representative"]
    return [_alignment(pack, name, folders[name]) for name in view.alignments]


@functools.cache
def _alignment(pack: Path, name: str, folder: str) -> Alignment:
    index = json.loads((pack / "inputs" / "msa" / "index.json").read_text())
    query = index.get(name, index[folder])["sequence"]
    files = sorted((pack / "inputs" / "msa" / folder).glob("*.a3m"), key=lambda p: SOURCES[p.stem])
    rows = [(SOURCES[path.stem], read_a3m(path, query)) for path in files]
    return alignment_of(name, rows, _species)


def _species(source: str, header: str) -> str:
    parts = re.split(r"[|_/:-]", header)
    return parts[3] if source == "uniprot_hits" and len(parts) == 6 else ""


def with_conformers(view: EntryView, sample: Recording) -> EntryView:
    """The entry with one stored conformer a component of the crop, as recorded."""
    arrays = sample.arrays
    stop = np.cumsum(arrays["conformer.atoms"])
    position = np.zeros([len(stop), *view.molecule_position.shape[1:]], np.float32)
    mask = np.ones(len(view.molecule_mask), bool)
    for number, row in enumerate(arrays["conformer.component_id"] - 1):
        atom_slice = slice(stop[number] - arrays["conformer.atoms"][number], stop[number])
        atoms = view.residue_atom[np.searchsorted(view.residue_component, [row, row + 1])]
        reference = view.atom_reference[slice(*atoms)]
        # The entry's atoms come first, in its order; those it lacks are not compared.
        position[number, reference] = arrays["conformer.pos"][atom_slice][: len(reference)]
        mask[reference] &= arrays["conformer.used"][atom_slice][: len(reference)]
    return dataclasses.replace(view, molecule_position=position, molecule_mask=mask)
