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
from tests.loader.views.boltz_recorded import alignment_of
from tests.loader.views.packs import Recording, openfold3_cache, recorded_calls

from evofeed.loader.counter_rng import Purpose
from evofeed.loader.sample_draws import SampleDraws, rotations
from evofeed.loader.views.entry_view import EntryView
from evofeed.protein.alignment import Alignment

STRATEGIES = ("contiguous", "spatial", "spatial_interface")


class RecordedDraws(SampleDraws):
    """Draws from a file; raises when asked in another order than recorded."""

    def __init__(self, view: EntryView, calls: list[tuple[str, Any]]) -> None:
        self.view = view
        self.calls = deque(calls)

    @classmethod
    def of_crop(cls, view: EntryView, about: dict[str, Any]) -> RecordedDraws:
        """Of one of the further crops."""
        draws = about["draws"]
        return cls(view, [(one["site"].rsplit(":", 1)[1], one["result"]) for one in draws])

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

    def choice(self, purpose: Purpose, values: np.ndarray, *, again: bool = False) -> int:
        assert purpose is Purpose.CROP_CENTRE
        value = self._next("crop_chainwise", "set_spatial")
        number = int(value.get("value", value)["token_id"])
        assert number in values
        return number

    def strategy(self, weights: Sequence[float]) -> int:
        value = self._next("sample_crop_strategy")
        value = value["value"] if isinstance(value, dict) else value
        return STRATEGIES.index(value if isinstance(value, str) else value[0])

    def chain_order(self, count: int) -> Sequence[int]:
        value = self._next("set_contiguous")
        names = value["value"] if isinstance(value, dict) else value
        order = {name: number for number, name in enumerate(sorted(map(str, names)))}
        assert len(order) == count
        return [order[str(name)] for name in names]

    def between(self, low: int, high: int) -> int:
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

    def part(self, purpose: Purpose, count: int, least: int) -> tuple[np.ndarray, int]:
        assert purpose is Purpose.MAIN_ROWS
        size = int(self._next("create_main.randint"))
        rows = np.reshape(self._next("create_main.choice"), -1)
        assert len(rows) == size
        return rows, size


def chain_rows(view: EntryView, datapoint: str | list[str]) -> tuple[int, ...]:
    """Rows of the chain, or the two, that a sample was drawn for."""
    names = [datapoint] if isinstance(datapoint, str) else datapoint
    return tuple(int(np.flatnonzero(view.chain_name == name)[0]) for name in names)


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
    rows: list[tuple[int, str, str]] = []
    files = sorted((pack / "inputs" / "msa" / folder).glob("*.a3m"), key=lambda p: SOURCES[p.stem])
    for number, path in enumerate(files):
        lines = path.read_text().split(">")[1:]
        for place, text in enumerate(lines):
            header, *body = text.split("\n")
            rows.append((number, header, "".join(body) if place else query))
    names = tuple(SOURCES[path.stem] for path in files)
    species = []
    for source, header, _ in rows:
        parts = re.split(r"[|_/:-]", header)
        named = names[source] == "uniprot_hits" and len(parts) == 6
        species.append(parts[3] if named else "")
    texts, sources = [text for *_, text in rows], [source for source, *_ in rows]
    return alignment_of(name, texts, sources, names, species)


def with_conformers(view: EntryView, sample: Recording) -> EntryView:
    """The entry with one stored conformer a component of the crop, as recorded."""
    arrays = sample.arrays
    stop = np.cumsum(arrays["conformer.atoms"])
    position = np.zeros([len(stop), *view.molecule_position.shape[1:]], np.float32)
    mask = np.ones(len(view.molecule_mask), bool)
    for number, component in enumerate(arrays["conformer.component_id"] - 1):
        own = slice(stop[number] - arrays["conformer.atoms"][number], stop[number])
        atoms = view.residue_atom[
            np.searchsorted(view.residue_component, [component, component + 1])
        ]
        reference = view.atom_reference[slice(*atoms)]
        # Atoms of the entry first, in its order; those it lacks are of no interest here.
        position[number, reference] = arrays["conformer.pos"][own][: len(reference)]
        mask[reference] &= arrays["conformer.used"][own][: len(reference)]
    return dataclasses.replace(view, molecule_position=position, molecule_mask=mask)
