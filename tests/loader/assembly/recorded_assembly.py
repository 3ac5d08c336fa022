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

from evofeed.loader.assembly.merge import AssemblyTensors, Entity, merge_entities
from evofeed.loader.assembly.pairing import EntityRows, RowPlan, plan_rows
from evofeed.loader.config import AssemblyConfig
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.from_record import chain_tensors
from evofeed.loader.sample_draws import SampleDraws

CPU = torch.device("cpu")


@dataclasses.dataclass
class Recorded:
    """One complex: its entities, what was recorded of it, and its chains' keys by entity."""

    entities: list[Entity]
    rows: list[EntityRows]
    steps: dict[str, np.ndarray]
    example: dict[str, np.ndarray]
    keys: list[list[str]]

    @property
    def firsts(self) -> list[int]:
        """The first chain of each entity."""
        return np.cumsum([0, *(len(keys) for keys in self.keys)])[:-1].tolist()

    def unstable_plan(self) -> RowPlan:
        """The rows as the recording machine's unstable sorts had them."""
        config = AssemblyConfig()
        if "pair.rows" not in self.steps:
            return plan_rows(self.rows, config)
        paired = own_rows(self, self.steps["pair.rows"])[: config.paired_rows]
        unpaired = []
        for keys in self.keys:
            kept = int(self.steps[f"crop.{keys[0]}.num_alignments"])
            unpaired.append(self.steps[f"dedup.{keys[0]}.keep_rows"][:kept].astype(np.int64))
        return RowPlan(paired, tuple(unpaired))

    def merged(
        self, plan: RowPlan, config: AssemblyConfig, coordinates: str = "fixed"
    ) -> AssemblyTensors:
        positions = mask = None
        if f"{coordinates}.all_atom_positions" in self.example:
            positions = torch.from_numpy(self.example[f"{coordinates}.all_atom_positions"])
            mask = torch.from_numpy(self.example[f"{coordinates}.all_atom_mask"]).float()
        return merge_entities(self.entities, plan, positions, mask, config)


def own_rows(recorded: Recorded, rows: np.ndarray) -> np.ndarray:
    """Recorded rows of every chain as rows of every entity; the padding row is -1."""
    found = rows[:, recorded.firsts].astype(np.int64)
    for number, of in enumerate(recorded.rows):
        found[found[:, number] == len(of.pair_msa), number] = -1
    return found


@functools.cache
def load_assembly(path: Path) -> Recorded:
    """The complex of an `.assembly.npz`."""
    steps = dict(np.load(path))
    meta = json.loads(str(steps["meta"]))
    keys: dict[str, list[str]] = {}
    for key in meta["keys"]:
        keys.setdefault(key.split("_")[0], []).append(key)
    entities: list[Entity] = []
    rows: list[EntityRows] = []
    for own in keys.values():
        name = meta["desc_of_key"][own[0]]
        raw = dict(np.load(path.with_name(f"{meta['name']}.chain.{name}.npz")))
        raw = {k.removeprefix("raw."): v for k, v in raw.items() if k.startswith("raw.")} | {
            "resolution": raw.get("conv.resolution", 0.0)
        }
        chain, pairing = from_raw_features(raw, name), None
        templates = tuple(range(chain.num_templates))
        if "msa_all_seq" in raw:
            paired = ("msa", "deletion_matrix_int", "msa_species_identifiers")
            pairing = from_raw_features(raw | {n: raw[f"{n}_all_seq"] for n in paired}, name)
        others = chain_tensors(pairing, (), supervised=False) if pairing else None
        of_chain = chain_tensors(chain, templates, supervised=False)
        entities.append(Entity(of_chain, others, len(own)))
        pairs = (pairing.msa, pairing.msa_species) if pairing else (None,)
        rows.append(EntityRows.of(chain.msa, len(own), *pairs))
    example = dict(np.load(path.with_name(f"{meta['name']}.np_example.npz")))
    return Recorded(entities, rows, steps, example, list(keys.values()))


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

    def happens(self, purpose: Purpose, probability: float) -> bool:
        return self.uses_spatial

    def even(self, purpose: Purpose, count: int, *, again: bool = False) -> int:
        assert self.picked is not None and self.picked[1] == count
        return int(self.picked[2])

    def chain_order(self, count: int) -> Sequence[int]:
        assert self.order is not None and len(self.order) == count
        return [int(i) for i in self.order]

    def between(self, low: int, high: int) -> int:
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
