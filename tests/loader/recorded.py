"""Golden chains and golden draws, read for replay."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from evofeed.loader.config import LoaderConfig
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.draws import Crop
from evofeed.loader.features import ChainTensors
from evofeed.loader.msa_draws import RecycleDraws
from evofeed.protein.residues import HHBLITS_TO_RESTYPE


@dataclasses.dataclass
class Case:
    """One recorded sample: where it is and how it was made."""

    draws: dict[str, np.ndarray]
    final: dict[str, np.ndarray]
    config: LoaderConfig
    chain: ChainTensors
    crop: Crop


def load_case(path: Path, device: str = "cpu") -> Case:
    name = path.name.removesuffix(".draws.npz")
    chain_name = re.sub(r"(\.crop\d+)?\.seed\d+$", "", name)
    draws, final = dict(np.load(path)), dict(np.load(path.with_name(f"{name}.final.npz")))
    raw = dict(np.load(path.with_name(f"{chain_name}.raw.npz")))
    supervised = "all_atom_positions" in raw
    preset = LoaderConfig.initial_training() if supervised else LoaderConfig.prediction()
    config = preset.replace(
        crop_size=final["aatype"].shape[0] if supervised else None,
        max_msa_clusters=final["msa_feat"].shape[0],
        max_extra_msa=final["extra_msa"].shape[0],
        max_templates=final["template_mask"].shape[0],
    )
    chain, crop = chain_from_raw(raw, draws, config, torch.device(device))
    return Case(draws, final, config, chain, crop)


def recorded_crop(draws: dict[str, np.ndarray], config: LoaderConfig, length: int, T: int) -> Crop:
    ints = [int(draws[k][0]) for k in sorted(draws) if ".random_crop_to_size.randint." in k]
    first, order = 0, np.arange(T)
    if T and config.subsample_templates:
        first, order = ints.pop(0), draws["draw.random_crop_to_size.randperm.0"]
    templates = tuple(int(one) for one in order[first : first + config.max_templates])
    return Crop(ints[1], min(length, config.crop_size or length), templates)


def chain_from_raw(
    raw: dict[str, np.ndarray],
    draws: dict[str, np.ndarray],
    config: LoaderConfig,
    device: torch.device,
) -> tuple[ChainTensors, Crop]:
    length = raw["msa"].shape[1]
    crop = recorded_crop(draws, config, length, raw["template_aatype"].shape[0])
    msa = HHBLITS_TO_RESTYPE[raw["msa"]]
    counts = np.stack([(msa == code).sum(0) for code in range(22)], -1)

    chain = ChainTensors.of(
        {
            **raw,
            "aatype": raw["aatype"].argmax(-1),
            "msa": msa,
            "hhblits_profile_counts": counts,
            "template_aatype": HHBLITS_TO_RESTYPE[raw["template_aatype"].argmax(-1)],
            "template_sum_probs": raw["template_sum_probs"].reshape(-1),
        }.__getitem__,
        raw["deletion_matrix_int"],
        crop.templates,
        with_structure="all_atom_positions" in raw,
        device=device,
        resolution=float(raw["resolution"][0]) if "resolution" in raw else 0.0,
        is_distillation=bool(raw.get("is_distillation", 0)),
    )
    return chain, crop


class RecordedDraws(RecycleDraws):
    """`RecycleDraws` that plays back what OpenFold drew."""

    def __init__(self, draws: dict[str, np.ndarray], config: LoaderConfig, device: str = "cpu"):
        self.draws = draws
        self.config = config
        self.device = device

    def _of(self, name: str) -> Tensor:
        return torch.from_numpy(self.draws[f"draw.{name}.0"]).to(self.device)

    def key(self, purpose: Purpose) -> int:
        return int(purpose)  # what it would draw is replaced

    def block_starts(self, num_rows: int) -> list[int]:
        return [int(i) for i in self._of("block_delete_msa.randint")]

    def distillation_order(self, count: int) -> Tensor:
        return torch.from_numpy(self.draws["draw.sample_msa.randperm.0"]).to(self.device)

    def row_order(self, count: int) -> Tensor:
        # A distillation chain's rows are sampled twice.
        last = max(name for name in self.draws if name.startswith("draw.sample_msa.randperm."))
        return torch.from_numpy(self.draws[last]).to(self.device)

    def mask_position(self, num_rows: int, num_res: int) -> Tensor:
        return self._of("make_masked_msa.rand") < self.config.masked_fraction

    def replacement(self, msa: Tensor, profile_counts: Tensor) -> Tensor:
        return self._of("shaped_categorical.categorical_sample").view(msa.shape).long()

    def extra_order(self, count: int) -> Tensor:
        return self._of("crop_extra_msa.randperm")
