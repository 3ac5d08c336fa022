"""Boltz's recorded draws for crops and samples, its alignments, and its ligands' atom orders."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.loader.views.packs import Recording, SampleInputs, entry_view, name_codes, recorded_calls

from evofeed.featurize.formats.a3m import parse_a3m
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.sample_draws import SampleDraws, rotations
from evofeed.loader.views.boltz.crop import crop_tokens
from evofeed.loader.views.boltz.features import boltz_features
from evofeed.loader.views.boltz.plan import plan_sample
from evofeed.loader.views.config import BoltzConfig
from evofeed.loader.views.entry_view import EntryView
from evofeed.protein.alignment import Alignment, letter_codes

planned, features_of = plan_sample, boltz_features
CLOSE: dict[str, float] = {"feature.coords": 1e-5, "feature.ref_pos": 1e-5}
RTOL = 1e-6
SITES = {
    Purpose.NEIGHBORHOOD: ("choice", "crop"),
    Purpose.QUERY_TOKEN: ("randint", "pick_random_token"),
    Purpose.NUM_ROWS: ("randint", "process"),
    Purpose.POCKET: ("random.random", "process_token_features"),
    Purpose.BINDER: ("random.choice", "process_token_features"),
    Purpose.POCKET_SIZE: ("geometric", "select_subset"),
    Purpose.POCKET_TOKENS: ("choice", "select_subset"),
    Purpose.ROTATION: ("randn", "random_quaternions"),
    Purpose.TRANSLATION: ("randn_like", "center_random"),
    Purpose.COMBINATIONS: ("sample", "get_chain_symmetries"),
}


class RecordedDraws(SampleDraws):
    """Replays the recorded calls in order."""

    def __init__(self, calls: list[tuple[str, str, Any]]) -> None:
        self.calls = calls

    def take(self, purpose: Purpose) -> Any:
        function, site = SITES[purpose]
        assert self.calls, f"nothing is left to replay for {function} in {site}"
        name, where, value = self.calls.pop(0)
        assert function in name, (function, name)
        assert site in where, (site, where)
        return value

    def integer(self, purpose: Purpose, count: int, *, per_call: bool = False) -> int:
        value = int(self.take(purpose))
        if purpose is Purpose.NEIGHBORHOOD:
            value //= 2
        value -= purpose is Purpose.NUM_ROWS
        assert 0 <= value < count
        return value

    def choice(self, purpose: Purpose, values: np.ndarray, *, per_call: bool = False) -> int:
        if purpose is not Purpose.BINDER:
            return super().choice(purpose, values, per_call=per_call)
        value = int(self.take(purpose))
        assert value in values
        return value

    def bernoulli(self, purpose: Purpose, probability: float) -> bool:
        return float(self.take(purpose)) < probability

    def geometric(self, purpose: Purpose, probability: float) -> int:
        return int(self.take(purpose))

    def subset(self, purpose: Purpose, values: np.ndarray, count: int) -> np.ndarray:
        chosen = np.asarray(self.take(purpose))
        assert len(chosen) == count
        assert np.isin(chosen, values).all()
        return chosen

    def normal_moves(
        self, moved: np.ndarray, turn: Purpose, shift: Purpose
    ) -> tuple[np.ndarray, np.ndarray]:
        turns = np.reshape(self.take(turn), (len(moved), 4))
        return rotations(turns), np.reshape(self.take(shift), (len(moved), 3))


def crop_again(view: EntryView, meta: dict[str, Any]) -> dict[str, Any]:
    """Another recorded crop, from the draws and with the names of the recording."""
    config = BoltzConfig(max_tokens=meta["max_tokens"], max_atoms=meta["max_atoms"])
    draws = RecordedDraws([(call["fn"], call["site"], call["result"]) for call in meta["draws"]])
    point = _datapoint(view, meta)
    if not point:  # Boltz's validation: any interface, else any chain
        valid = view.chain_valid[view.interface_chain].all(1)
        named = view.interface_chain[valid] if valid.any() else view.chain_valid.nonzero()[0]
        point = np.atleast_1d(named[int(draws.calls.pop(1)[2])]).tolist()
    tokens = crop_tokens(view, point, draws, config)
    assert not draws.calls
    return {"token_idx": tokens}


def _datapoint(view: EntryView, metadata: dict[str, Any]) -> list[int]:
    if metadata.get("interface_id") is not None:
        return [int(chain) for chain in view.interface_chain[metadata["interface_id"]]]
    return [] if metadata.get("chain_id") is None else [int(metadata["chain_id"])]


def inputs_of(pack: Path, sample: Recording) -> SampleInputs:
    """The inputs of a recorded sample."""
    view, meta = boltz_view(pack, sample.meta["entry"]), sample.meta
    calls = [(site["fn"], site["site"][0], value) for site, value in recorded_calls(sample)]
    assert "__getitem__" in calls[0][1]  # the only data set
    sizes = {name: meta[name] for name in ("max_tokens", "max_atoms", "max_seqs")}
    config = BoltzConfig(**sizes, symmetries=True)
    return SampleInputs(
        view,
        alignments_of_view(pack, view),
        _datapoint(view, meta),
        RecordedDraws(calls[1:]),
        config,
    )


def alignments_of_view(pack: Path, view: EntryView) -> list[Alignment]:
    """The alignments that an entry's chains name."""
    return [boltz_alignment(pack, name) for name in view.alignments]


def named(features: dict[str, Any], sample: Recording) -> dict[str, Any]:
    """Features and symmetries by the names of the recording."""
    return {
        f"symmetry.{name}" if name.endswith("_symmetries") else f"feature.{name}": value
        for name, value in features.items()
    }


@functools.lru_cache(maxsize=4)
def boltz_view(pack: Path, entry: str) -> EntryView:
    """The recorded structure with the ligand symmetries that were handed to Boltz."""
    view = entry_view("boltz", pack, entry)
    with np.load(pack / "components" / "boltz_symmetries.npz") as members:
        listed = {name: members[name] for name in members.files}
    orders = list(view.molecule_orders)
    for number, name in enumerate(view.molecule_name):
        if f"{name}.perm" in listed:
            orders[number] = _orders_of_present(view, number, name, listed)
    return dataclasses.replace(view, molecule_orders=tuple(orders))


def _orders_of_present(
    view: EntryView, number: int, name: str, listed: dict[str, np.ndarray]
) -> np.ndarray:
    """Orders of a complete component as orders of its atoms in an entry."""
    names = view.atom_name[view.molecule_atom[number] : view.molecule_atom[number + 1]]
    listed_names = name_codes(listed[f"{name}.name"]).tolist()
    present = np.array([listed_names.index(codes) for codes in names.tolist()])
    index = np.full(len(listed_names), -1)
    index[present] = np.arange(len(present))
    orders = index[listed[f"{name}.perm"][:, present]]
    return orders[(orders >= 0).all(1)]


@functools.cache
def boltz_alignment(pack: Path, name: str) -> Alignment:
    """The a3m files of an alignment as they were given to Boltz."""
    folder = pack / "inputs" / "msa" / name
    taxa = json.loads((pack / "inputs" / "taxonomy.json").read_text())

    def taxon(_source: str, header: str) -> str:
        first = header.split()[0] if header else ""
        number = taxa.get(first.split("_")[1]) if first.startswith("UniRef100") else None
        return "" if number is None else str(number)

    files = ("pairing", "non_pairing")
    return alignment_of(name, [(file, read_a3m(folder / f"{file}.a3m")) for file in files], taxon)


def read_a3m(path: Path, query: str = "") -> list[tuple[str, str]]:
    """Headers and rows of a file; the first row is `query` if given."""
    parts = path.read_text().split(">")[1:]
    lines = (part.splitlines() for part in parts)
    rows = [(head[0], "".join(head[1:]).strip()) for head in lines]
    return [(rows[0][0], query or rows[0][1]), *rows[1:]]


def alignment_of(
    name: str, files: list[tuple[str, list[tuple[str, str]]]], species_of: Callable[[str, str], str]
) -> Alignment:
    """Rows of files, by their sources, as an `Alignment`; species by source and header."""
    rows = [text for _, entries in files for _, text in entries]
    species = [species_of(source, header) for source, entries in files for header, _ in entries]
    msa = parse_a3m("".join(f">row\n{text}\n" for text in rows).encode())
    counts = np.bincount(msa.deletion_row, minlength=len(rows))
    codes = letter_codes(msa.letters)
    unique, number = np.unique(codes, axis=0, return_inverse=True)
    bare = [text.replace("-", "").upper() for text in rows]
    table = tuple(sorted(set(species) - {""}))
    return Alignment(
        name=name,
        sources=tuple(source for source, _ in files),
        letters=unique,
        row_letters=number,
        row_source=np.repeat(np.arange(len(files)), [len(entries) for _, entries in files]),
        row_species=np.array([table.index(name_) if name_ else -1 for name_ in species]),
        row_gapless=np.unique(np.array(bare), return_inverse=True)[1],
        species=table,
        deletion_start=np.append(0, np.cumsum(counts)),
        deletion_column=msa.deletion_column,
        deletion_count=msa.deletion_count,
    )
