"""What Boltz drew for a recorded sample, its alignments, and its ligands' atom orders."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
from tests.loader.views.packs import entry_view, name_codes, read

from evofeed.featurize.formats.a3m import parse_a3m
from evofeed.loader.views.draws import BoltzDraws
from evofeed.loader.views.entry_view import EntryView
from evofeed.protein.alignment import Alignment, letter_codes


class RecordedDraws(BoltzDraws):
    """Replays the recorded calls in order."""

    def __init__(self, calls: list[tuple[str, str, Any]]) -> None:
        self.calls = calls

    def take(self, function: str, site: str) -> Any:
        assert self.calls, f"nothing is left to replay for {function} in {site}"
        name, where, value = self.calls.pop(0)
        assert function in name, (function, name)
        assert site in where, (site, where)
        return value

    def neighborhood(self, count: int) -> int:
        assert count == 21
        return int(self.take("choice", "crop")) // 2

    def query(self, count: int) -> int:
        value = int(self.take("randint", "pick_random_token"))
        assert value < count
        return value

    def rows(self, most: int) -> int:
        return int(self.take("randint", "process"))

    def pocket(self, probability: float) -> bool:
        return float(self.take("random.random", "process_token_features")) < probability

    def binder(self, chains: np.ndarray) -> int:
        value = int(self.take("random.choice", "process_token_features"))
        assert value in chains
        return value

    def pocket_size(self, probability: float) -> int:
        return int(self.take("geometric", "select_subset"))

    def pocket_tokens(self, tokens: np.ndarray, count: int) -> np.ndarray:
        value = np.asarray(self.take("choice", "select_subset"))
        assert len(value) == count
        assert np.isin(value, tokens).all()
        return value

    def quaternions(self, count: int) -> np.ndarray:
        return np.asarray(self.take("randn", "random_quaternions")).reshape(count, 4)

    def translations(self, count: int) -> np.ndarray:
        return np.asarray(self.take("randn_like", "center_random")).reshape(count, 3)

    def combinations(self, count: int, wanted: int) -> np.ndarray:
        return np.asarray(self.take("sample", "get_chain_symmetries"))


def sample_draws(meta: dict[str, Any], arrays: dict[str, Any]) -> RecordedDraws:
    calls: dict[int, tuple[str, str, Any]] = {}
    for site in meta["draws"]:
        values = arrays[f"draw.{site['array']}"] if "array" in site else [site["value"]]
        for number, value in zip(site["calls"], values, strict=True):
            calls[number] = (site["fn"], site["site"][0], value)
    ordered = [calls[number] for number in sorted(calls)]
    assert "__getitem__" in ordered[0][1]  # the data set, of one
    return RecordedDraws(ordered[1:])


def crop_draws(crop: dict[str, Any]) -> RecordedDraws:
    return RecordedDraws([(one["fn"], one["site"], one["result"]) for one in crop["draws"]])


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
    rows: list[tuple[str, str]] = []
    sources = []
    for number, file in enumerate(("pairing", "non_pairing")):
        before = len(rows)
        rows += read_a3m(folder / f"{file}.a3m")
        sources += [number] * (len(rows) - before)
    species = []
    for header, _ in rows:
        first = header.split()[0] if header else ""
        taxon = taxa.get(first.split("_")[1]) if first.startswith("UniRef100") else None
        species.append("" if taxon is None else str(taxon))
    return alignment_of(
        name, [text for _, text in rows], sources, ("pairing", "non_pairing"), species
    )


def read_a3m(path: Path) -> list[tuple[str, str]]:
    parts = path.read_text().split(">")[1:]
    lines = (part.splitlines() for part in parts)
    return [(head[0], "".join(head[1:]).strip()) for head in lines]


def alignment_of(
    name: str, rows: list[str], sources: list[int], names: tuple[str, ...], species: list[str]
) -> Alignment:
    """Aligned text as an `Alignment`."""
    msa = parse_a3m("".join(f">row\n{text}\n" for text in rows).encode())
    counts = np.bincount(msa.deletion_row, minlength=len(rows))
    codes = letter_codes(msa.letters)
    unique, number = np.unique(codes, axis=0, return_inverse=True)
    bare = [text.replace("-", "").upper() for text in rows]
    table = tuple(sorted(set(species) - {""}))
    return Alignment(
        name=name,
        sources=names,
        letters=unique,
        row_letters=number,
        row_source=np.array(sources),
        row_species=np.array([table.index(one) if one else -1 for one in species]),
        row_gapless=np.unique(np.array(bare), return_inverse=True)[1],
        species=table,
        deletion_start=np.append(0, np.cumsum(counts)),
        deletion_column=msa.deletion_column,
        deletion_count=msa.deletion_count,
    )


__all__ = ["boltz_alignment", "boltz_view", "crop_draws", "name_codes", "read", "sample_draws"]
