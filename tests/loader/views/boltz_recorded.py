"""What Boltz drew for a recorded crop or sample, its alignments, and its ligands' atom orders."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.loader.views.packs import Given, Recording, entry_view, name_codes, recorded_calls

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
        found = np.asarray(self.take(purpose))
        assert len(found) == count
        assert np.isin(found, values).all()
        return found

    def normal_moves(
        self, moved: np.ndarray, turn: Purpose, shift: Purpose
    ) -> tuple[np.ndarray, np.ndarray]:
        turns = np.reshape(self.take(turn), (len(moved), 4))
        return rotations(turns), np.reshape(self.take(shift), (len(moved), 3))


def crop_again(view: EntryView, about: dict[str, Any]) -> dict[str, Any]:
    """A further crop, by the draws and names of the recording."""
    config = BoltzConfig(max_tokens=about["max_tokens"], max_atoms=about["max_atoms"])
    draws = RecordedDraws([(one["fn"], one["site"], one["result"]) for one in about["draws"]])
    point = _datapoint(view, about)
    if not point:  # Boltz's validation: any interface, else any chain
        valid = view.chain_valid[view.interface_chain].all(1)
        named = view.interface_chain[valid] if valid.any() else view.chain_valid.nonzero()[0]
        point = np.atleast_1d(named[int(draws.calls.pop(1)[2])]).tolist()
    kept = crop_tokens(view, point, draws, config)
    assert not draws.calls
    return {"token_idx": kept}


def _datapoint(view: EntryView, about: dict[str, Any]) -> list[int]:
    if about.get("interface_id") is not None:
        return [int(chain) for chain in view.interface_chain[about["interface_id"]]]
    return [] if about.get("chain_id") is None else [int(about["chain_id"])]


def given(pack: Path, sample: Recording) -> Given:
    """What a recorded sample was made of."""
    view, meta = boltz_view(pack, sample.meta["entry"]), sample.meta
    calls = [(site["fn"], site["site"][0], value) for site, value in recorded_calls(sample)]
    assert "__getitem__" in calls[0][1]  # the data set, of one
    sizes = {name: meta[name] for name in ("max_tokens", "max_atoms", "max_seqs")}
    config = BoltzConfig(**sizes, symmetries=True)
    return Given(
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
            orders[number] = _of_present(view, number, name, listed)
    return dataclasses.replace(view, molecule_orders=tuple(orders))


def _of_present(
    view: EntryView, number: int, name: str, listed: dict[str, np.ndarray]
) -> np.ndarray:
    """Orders of a whole component as orders of the atoms an entry has of it."""
    own = view.atom_name[view.molecule_atom[number] : view.molecule_atom[number + 1]]
    theirs = {tuple(row): at for at, row in enumerate(name_codes(listed[f"{name}.name"]).tolist())}
    rows = np.array([theirs[tuple(row)] for row in own.tolist()])
    place = np.full(len(theirs), -1)
    place[rows] = np.arange(len(rows))
    orders = place[listed[f"{name}.perm"][:, rows]]
    return orders[(orders >= 0).all(1)]


@functools.cache
def boltz_alignment(pack: Path, name: str) -> Alignment:
    """The a3m files of an alignment as they were given to Boltz."""
    folder = pack / "inputs" / "msa" / name
    taxa = json.loads((pack / "inputs" / "taxonomy.json").read_text())

    def taxon(_source: str, header: str) -> str:
        first = header.split()[0] if header else ""
        found = taxa.get(first.split("_")[1]) if first.startswith("UniRef100") else None
        return "" if found is None else str(found)

    files = ("pairing", "non_pairing")
    return alignment_of(name, [(one, read_a3m(folder / f"{one}.a3m")) for one in files], taxon)


def read_a3m(path: Path, query: str = "") -> list[tuple[str, str]]:
    """Headers and rows of a file, the first of them another query if there is one."""
    parts = path.read_text().split(">")[1:]
    lines = (part.splitlines() for part in parts)
    rows = [(head[0], "".join(head[1:]).strip()) for head in lines]
    return [(rows[0][0], query or rows[0][1]), *rows[1:]]


def alignment_of(
    name: str, files: list[tuple[str, list[tuple[str, str]]]], species_of: Callable[[str, str], str]
) -> Alignment:
    """Rows of files, by their sources, as an `Alignment`; species by source and header."""
    rows = [text for _, own in files for _, text in own]
    species = [species_of(source, header) for source, own in files for header, _ in own]
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
        row_source=np.repeat(np.arange(len(files)), [len(own) for _, own in files]),
        row_species=np.array([table.index(one) if one else -1 for one in species]),
        row_gapless=np.unique(np.array(bare), return_inverse=True)[1],
        species=table,
        deletion_start=np.append(0, np.cumsum(counts)),
        deletion_column=msa.deletion_column,
        deletion_count=msa.deletion_count,
    )
