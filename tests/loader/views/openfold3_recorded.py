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
from tests.loader.views.packs import Given, Recording, entry_view, openfold3_cache, recorded_calls

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
        """Of a training sample: the calls of all sites in their order."""
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
        """All results of a site, out of their order."""
        found = [value for one, value in self.calls if one.startswith(name)]
        self.calls = deque(call for call in self.calls if not call[0].startswith(name))
        return found

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


def crop_again(view: EntryView, about: dict[str, Any]) -> dict[str, Any]:
    """A further crop, by the draws and names of the recording."""
    weights = tuple(float(name == about["method"]) for name in STRATEGIES)
    config = OpenFold3Config(
        token_budget=about["token_budget"], max_chains=about["n_chains"], crop_weights=weights
    )
    calls = [(one["site"].rsplit(":", 1)[1], one["result"]) for one in about["draws"]]
    draws = RecordedDraws(view, calls)
    crop = crop_entry(view, _datapoint(view, about["datapoint"]), draws, config)
    assert crop.strategy.name.lower() == about["strategy"] and not draws.calls
    return {"token_id": crop.tokens, "chains": view.chain_name[crop.chains]}


def _datapoint(view: EntryView, named: str | list[str]) -> tuple[int, ...]:
    """Rows of the chain, or the two, that a sample was drawn for."""
    names = [named] if isinstance(named, str) else named
    return tuple(int(np.flatnonzero(view.chain_name == name)[0]) for name in names)


def given(pack: Path, sample: Recording) -> Given:
    """What a recorded sample was made of."""
    view = entry_view("openfold3", pack, sample.meta["entry"])
    alignments, point = recorded_alignments(pack, view), _datapoint(view, sample.meta["datapoint"])
    view = with_conformers(view, sample)
    config = OpenFold3Config(token_budget=sample.meta["token_budget"])
    return Given(view, alignments, point, RecordedDraws.of_sample(view, sample), config)


def named(features: dict[str, Any], sample: Recording) -> dict[str, Any]:
    """Features and permutations by the names of the recording."""
    orders = features["ref_space_uid_to_perm"]
    found: dict[str, Any] = {f"feature.{name}": value for name, value in flat(features).items()}
    return found | {
        "permutation.uid": list(orders),
        "permutation.rows": [one.shape[0] for one in orders.values()],
        "permutation.cols": [one.shape[1] for one in orders.values()],
        "permutation.values": [int(n) for one in orders.values() for n in one.ravel()],
    }


def flat(features: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tensors of nested tables by the dotted names of the recording."""
    found: dict[str, Any] = {}
    for name, value in features.items():
        if isinstance(value, dict) and name != "ref_space_uid_to_perm":
            found |= flat(value, f"{prefix}{name}.")
        elif not isinstance(value, dict):
            found[prefix + name] = value
    return found


SOURCES = {
    "pairing": "uniref90_hits",
    "non_pairing": "mgnify_hits",
    "uniprot_hits": "uniprot_hits",
    "rna": "rnacentral_hits",
}


def recorded_alignments(pack: Path, view: EntryView) -> list[Alignment]:
    """The alignments of an entry, their queries replaced by the sequences of its chains."""
    stands_for = openfold3_cache(pack)["alignment_of_representative"]
    return [_alignment(pack, name, stands_for[name]) for name in view.alignments]


@functools.cache
def _alignment(pack: Path, name: str, folder: str) -> Alignment:
    about = json.loads((pack / "inputs" / "msa" / "index.json").read_text())
    query = about.get(name, about[folder])["sequence"]
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
    for number, one in enumerate(arrays["conformer.component_id"] - 1):
        own = slice(stop[number] - arrays["conformer.atoms"][number], stop[number])
        atoms = view.residue_atom[np.searchsorted(view.residue_component, [one, one + 1])]
        reference = view.atom_reference[slice(*atoms)]
        # Atoms of the entry first, in its order; those it lacks are of no interest here.
        position[number, reference] = arrays["conformer.pos"][own][: len(reference)]
        mask[reference] &= arrays["conformer.used"][own][: len(reference)]
    return dataclasses.replace(view, molecule_position=position, molecule_mask=mask)
