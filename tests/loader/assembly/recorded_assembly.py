"""OpenFold's recorded complexes and their draws, read for replay."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.loader.recorded import RecordedDraws, from_raw_features

from evofeed.loader.assembly.features import AssemblyTensors
from evofeed.loader.assembly.pairing import RowPlan, plan_rows
from evofeed.loader.assembly.plan import AssemblyInfo, merge_chains
from evofeed.loader.config import AssemblyConfig
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.from_record import complex_tensors
from evofeed.loader.sample_draws import SampleDraws
from evofeed.protein.assembly_record import AssemblyRecord

CPU = torch.device("cpu")


@dataclasses.dataclass
class Recorded:
    """One complex: its record, its recorded arrays, and its chains' keys by entity."""

    record: AssemblyRecord
    steps: dict[str, np.ndarray]
    example: dict[str, np.ndarray]
    keys: list[list[str]]

    @property
    def lengths(self) -> list[int]:
        return [chain.num_res for chain, _ in self.record.members]

    @property
    def firsts(self) -> list[int]:
        """The first chain of each entity."""
        return np.cumsum([0, *(len(keys) for keys in self.keys)])[:-1].tolist()

    def unstable_plan(self) -> RowPlan:
        """The rows as the recording machine's unstable sorts had them."""
        config = AssemblyConfig()
        if "pair.rows" not in self.steps:
            return plan_rows(self.record, config)
        paired = entity_rows(self, self.steps["pair.rows"])[: config.paired_rows]
        unpaired = []
        for keys in self.keys:
            num_rows = int(self.steps[f"crop.{keys[0]}.num_alignments"])
            unpaired.append(self.steps[f"dedup.{keys[0]}.keep_rows"][:num_rows].astype(np.int64))
        return RowPlan(paired, tuple(unpaired))

    def merged(
        self, plan: RowPlan, config: AssemblyConfig, coordinates: str = "fixed"
    ) -> AssemblyTensors:
        names = "all_atom_positions", "all_atom_mask"
        truth = {name: self.example.get(f"{coordinates}.{name}") for name in names}
        record = dataclasses.replace(self.record, **truth)
        laid = merge_chains(record, plan, config, config.max_templates)
        info = AssemblyInfo(plan.num_rows, record.num_chains, record.chains[0].resolution, False)
        return complex_tensors({"crop": np.arange(record.num_res), **laid}, info)


def entity_rows(recorded: Recorded, rows: np.ndarray) -> np.ndarray:
    """Recorded rows of every chain as rows of every entity; the padding row is -1."""
    result = rows[:, recorded.firsts].astype(np.int64)
    for number, pairing in enumerate(recorded.record.pairing):
        result[result[:, number] == (len(pairing.msa) if pairing else 1), number] = -1
    return result


@functools.cache
def load_assembly(path: Path) -> Recorded:
    """The complex of an `.assembly.npz`."""
    steps = dict(np.load(path))
    meta = json.loads(str(steps["meta"]))
    keys: dict[str, list[str]] = {}
    for key in meta["keys"]:
        keys.setdefault(key.split("_")[0], []).append(key)
    chains, pairing = [], []
    for chain_keys in keys.values():
        name = meta["desc_of_key"][chain_keys[0]]
        arrays = dict(np.load(path.with_name(f"{meta['name']}.chain.{name}.npz")))
        raw = {k.removeprefix("raw."): v for k, v in arrays.items() if k.startswith("raw.")}
        raw["resolution"] = arrays.get("conv.resolution", np.zeros([]))
        chains.append(from_raw_features(raw, name))
        rows = ("msa", "deletion_matrix_int", "msa_species_identifiers")
        pairs = {column: raw[f"{column}_all_seq"] for column in rows if f"{column}_all_seq" in raw}
        pairing.append(from_raw_features({**raw, **pairs}, name) if pairs else None)
    example = dict(np.load(path.with_name(f"{meta['name']}.np_example.npz")))
    record = AssemblyRecord(
        assembly_id=meta["name"],
        chains=tuple(chains),
        pairing=tuple(pairing),
        copies=tuple(tuple(chain_keys) for chain_keys in keys.values()),
    )
    return Recorded(record, steps, example, list(keys.values()))


class RecordedCrop(SampleDraws):
    """The draws of a recording."""

    def __init__(self, draws: dict[str, np.ndarray], spatial_crop_prob: float) -> None:
        # The generator is seeded again in each recycle: the first one's draws are all there is.
        self.uses_spatial = "draw.random_crop_to_size.rand.0" in draws and bool(
            draws["draw.random_crop_to_size.rand.0"][0] < spatial_crop_prob
        )
        self.picked = draws.get("draw.get_spatial_crop_idx.randint.0")
        self.order = draws.get("draw.get_contiguous_crop_idx.randperm.0")
        prefix = "draw.get_contiguous_crop_idx.randint."
        count = sum(name.startswith(prefix) for name in draws)
        self.ints = deque(draws[f"{prefix}{i}"] for i in range(count))

    def bernoulli(self, purpose: Purpose, probability: float) -> bool:
        return self.uses_spatial

    def integer(self, purpose: Purpose, count: int, *, per_call: bool = False) -> int:
        assert self.picked is not None and self.picked[1] == count
        return int(self.picked[2])

    def chain_order(self, count: int) -> Sequence[int]:
        assert self.order is not None and len(self.order) == count
        return [int(i) for i in self.order]

    def integer_between(self, low: int, high: int) -> int:
        bounds = self.ints.popleft()
        assert bounds[0] == low and bounds[1] - 1 == high
        return int(bounds[2])


class RecordedRecycle(RecordedDraws):
    """`RecycleDraws` of one recycle of a recorded complex."""

    def __init__(self, draws: dict[str, np.ndarray], recycle: int, rows: int, fraction: float):
        self.draws, self.recycle, self.rows, self.fraction = draws, recycle, rows, fraction
        self.device = "cpu"

    def _at(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self.draws[f"draw.{name}.{self.recycle}"])

    def row_order(self, count: int) -> torch.Tensor:
        uniform = self._at("sample_msa.gumbel_rand")
        noise = -torch.log(-torch.log(uniform + 1e-6) + 1e-6)
        return torch.argsort(noise[1 : count + 1], descending=True, stable=True)

    def mask_position(self, num_rows: int, num_res: int) -> torch.Tensor:
        if f"draw.make_masked_msa.mask_rand.{self.recycle}" in self.draws:
            return self._at("make_masked_msa.mask_rand") < self.fraction
        return self._at("make_masked_msa.mask_rand_lt_replace_fraction") > 0

    def replacement(self, msa: torch.Tensor, profile_counts: torch.Tensor) -> torch.Tensor:
        return self._at("make_masked_msa.categorical_sample").long()


def load_sample(path: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]:
    """Draws, final features and meta of a recorded sample."""
    draws = dict(np.load(path))
    final = dict(np.load(path.with_name(path.name.replace(".draws.", ".final."))))
    meta = json.loads(str(draws.pop("meta")))
    final.pop("meta")
    return draws, {k.removeprefix("final."): v for k, v in final.items()}, meta
