"""Protenix's recorded draws, replayed through the plan, and its alignments."""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.loader.views.boltz_recorded import alignment_of, read_a3m
from tests.loader.views.packs import Recording, SampleInputs, entry_view, read, recorded_calls

from evofeed.loader.counter_rng import Purpose
from evofeed.loader.sample_draws import SampleDraws
from evofeed.loader.views.config import ProtenixConfig
from evofeed.loader.views.crop import Tokens
from evofeed.loader.views.entry_view import ProtenixView
from evofeed.loader.views.protenix.crop import crop_tokens
from evofeed.loader.views.protenix.features import protenix_features
from evofeed.loader.views.protenix.plan import plan_sample
from evofeed.protein.alignment import Alignment

planned, features_of = plan_sample, protenix_features
CLOSE: dict[str, float] = {}
RTOL = 1e-6
STRATEGIES = ("ContiguousCropping", "SpatialCropping", "SpatialInterfaceCropping")
SITES = {
    Purpose.RESIDUE_SIDE: "_determine_start_end_point",
    Purpose.CROP_CENTRE: "get_spatial_crop_index",
}
_UNIPROT = re.compile(r"(?:tr|sp)\|[A-Z0-9]{6,10}(?:_\d+)?\|[A-Z0-9]{1,10}_([A-Z0-9]{1,5})")
_UNIREF = re.compile(r"UniRef100_[^_]+_([^_/]+)")


def _name(site: str) -> str:
    return site.rsplit(":", 1)[1]


class RecordedDraws(SampleDraws):
    """Draws from a file; raises when asked in another order than recorded."""

    def __init__(self, calls: list[tuple[str, Any]]) -> None:
        self.calls = deque(calls)

    @classmethod
    def of_sample(cls, sample: Recording) -> RecordedDraws:
        """The draws of a training sample: the calls of all sites in order."""
        calls = recorded_calls(sample)
        return cls([(f"{_name(site['site'][0])}.{site['fn']}", value) for site, value in calls])

    def _next(self, start: str, end: str = "") -> Any:
        name, value = self.calls.popleft()
        assert name.startswith(start), (name, start)
        assert end in name, (name, end)
        return value

    def permutation(self, purpose: Purpose, count: int, *, per_call: bool = False) -> np.ndarray:
        if purpose is Purpose.MOLECULE_ORDER:
            order = np.ravel(self._next("_shuffle_array_based_on_mol_id"))
        else:
            order = np.ravel(self._next("_shuffle."))  # of numbers, each once
            order = np.argsort(np.argsort(order))
        assert len(order) == count
        return order

    def integer(self, purpose: Purpose, count: int, *, per_call: bool = False) -> int:
        value = int(np.ravel(self._next(SITES[purpose]))[0])
        assert value < count
        return value

    def crop_strategy(self, weights: Sequence[float]) -> int:
        return STRATEGIES.index(self._next("random_crop_method")[0])

    def chain_order(self, count: int) -> Sequence[int]:
        order = [int(number) for number in np.ravel(self._next("get_continues", "randperm"))]
        assert len(order) == count
        return order

    def integer_between(self, low: int, high: int) -> int:
        value = int(np.ravel(self._next("get_continues", "randint"))[0])
        assert low <= value <= high, (low, value, high)
        return value

    def permutation_and_size(
        self, purpose: Purpose, count: int, least: int
    ) -> tuple[np.ndarray, int]:
        order = np.asarray(self._next("get_templates", "permutation")).astype(np.int64)
        assert len(order) == count
        return order, int(self._next("get_templates", "randint"))

    def uniform_moves(self, count: int, max_shift: float) -> tuple[np.ndarray, np.ndarray]:
        moves = [
            (self._next("random_transform", "uniform"), self._next("random_transform", "Rotation"))
            for _ in range(count)
        ]
        shifts, turns = zip(*moves, strict=True)
        return np.stack(turns), np.stack(shifts)


def datapoint(view: ProtenixView, row: dict[str, str]) -> list[int]:
    """Rows of the one or two chains of a sample's datapoint."""
    names = [row["chain_1_id"], row["chain_2_id"]][: 1 + (row["type"] == "interface")]
    return [int(np.flatnonzero(view.chain_name == name)[0]) for name in names]


def crop_again(view: ProtenixView, metadata: dict[str, Any]) -> dict[str, Any]:
    """Another recorded crop, from the draws and with the names of the recording."""
    calls = [("random_crop_method", [metadata["method"]])]
    calls += [(f"{_name(call['site'])}.{call['fn']}", call["result"]) for call in metadata["draws"]]
    draws, point = RecordedDraws(calls), datapoint(view, metadata["index_row"])
    config = ProtenixConfig(crop_size=metadata["crop_size"])
    indices, strategy = crop_tokens(Tokens.of(view), point, draws, config)
    assert strategy == STRATEGIES.index(metadata["method"]) and not draws.calls
    return {"selected": indices}


def inputs_of(pack: Path, sample: Recording) -> SampleInputs:
    """The inputs of a recorded sample."""
    view, meta = entry_view("protenix", pack, sample.meta["entry"]), sample.meta
    assert isinstance(view, ProtenixView)
    config = ProtenixConfig(
        crop_size=meta["crop_size"],
        shuffle_molecules=meta["shuffle_mols"],
        shuffle_copies=meta["shuffle_sym_ids"],
        rename_ligand_atoms=meta["lig_atom_rename"],
    )
    alignments, point = recorded_alignments(pack, view, sample), datapoint(view, meta["index_row"])
    return SampleInputs(view, alignments, point, RecordedDraws.of_sample(sample), config)


def named(features: dict[str, Any], sample: Recording) -> dict[str, Any]:
    """Features, labels and permutations by the names of the recording."""
    parts = ("input_feature_dict", "label_dict", "label_full_dict", "basic")
    tables = zip(("feature", "label", "label_full", "basic"), parts, strict=True)
    values = {f"{short}.{key}": v for short, part in tables for key, v in features[part].items()}
    return values | {"permutation.atom_perm_list": values.pop("feature.atom_perm_list")}


def recorded_alignments(pack: Path, view: ProtenixView, sample: Recording) -> list[Alignment]:
    """The alignments of an entry's polymers; only the sequence if none was recorded."""
    table = read(pack / "protenix" / "structure" / f"{view.entry}.npz").meta["other"]["sequences"]
    folders = {
        chain["entity"]: chain["alignment"]
        for chain in sample.meta["chains"].values()
        if chain.get("alignment")
    }
    return [_alignment(pack, name, table[name], folders.get(name)) for name in view.alignments]


@functools.cache
def _alignment(pack: Path, name: str, sequence: str, folder: str | None) -> Alignment:
    home = pack / "inputs" / "msa" / str(folder)
    paths = [home / f"{file}.a3m" for file in ("pairing", "non_pairing", "rna")]
    files = [(path.stem, read_a3m(path, sequence)) for path in paths if folder and path.exists()]
    return alignment_of(name, [("query", [("query", sequence)]), *files], _species)


def _species(_source: str, header: str) -> str:
    match = _UNIPROT.match(header.strip()) or _UNIREF.match(header.strip())
    return match.group(1) if match else ""
