"""Golden chains and golden draws, read for replay."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import torch
from tests.store.records import profile_counts
from torch import Tensor

from evofeed.loader.config import LoaderConfig
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.draws import Crop
from evofeed.loader.features import ChainTensors
from evofeed.loader.from_record import chain_tensors
from evofeed.loader.msa_draws import RecycleDraws
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import HHBLITS_TO_RESTYPE, RESTYPES


@dataclasses.dataclass
class Case:
    """One recorded sample: its draws, features, configuration, chain and crop."""

    draws: dict[str, np.ndarray]
    final: dict[str, np.ndarray]
    config: LoaderConfig
    chain: ChainTensors
    crop: Crop


def from_raw_features(raw: dict[str, np.ndarray], chain_id: str) -> ChainRecord:
    """The record of raw features; template coordinates have no centre there, so it is 0."""
    aatype = raw["aatype"].argmax(-1).astype(np.uint8)
    msa, deletions = HHBLITS_TO_RESTYPE[raw["msa"]], raw["deletion_matrix_int"]
    row, column = (at.astype(np.int32) for at in np.nonzero(deletions))
    count, atoms = len(raw["template_aatype"]), (len(aatype), 37)
    has_structure = "all_atom_positions" in raw
    return ChainRecord(
        chain_id=chain_id,
        sequence="".join((RESTYPES + "X")[code] for code in aatype),
        aatype=aatype,
        residue_index=raw["residue_index"].astype(np.int32),
        msa=msa,
        deletion_row=row,
        deletion_column=column,
        deletion_count=deletions[row, column].astype(np.int32),
        msa_source=np.zeros(len(msa), np.uint8),
        msa_sources=("recorded",),
        msa_species=tuple(
            name.decode() for name in raw.get("msa_species_identifiers", [b""] * len(msa))
        ),
        hhblits_profile_counts=profile_counts(msa),
        all_atom_positions=raw["all_atom_positions"].astype(np.float32) if has_structure else None,
        all_atom_mask=raw["all_atom_mask"].astype(np.uint8) if has_structure else None,
        template_aatype=HHBLITS_TO_RESTYPE[raw["template_aatype"].argmax(-1)],
        template_all_atom_positions=raw["template_all_atom_positions"].reshape(count, *atoms, 3),
        template_all_atom_mask=raw["template_all_atom_mask"].astype(np.uint8),
        template_center=np.zeros([count, 3], np.float32),
        template_sum_probs=raw["template_sum_probs"].astype(np.float32).reshape(-1),
        template_domain_names=("",) * count,
        template_sequence=("",) * count,
        template_release_date=("",) * count,
        resolution=float(np.ravel(raw.get("resolution", 0.0))[0]),
        is_distillation=bool(raw.get("is_distillation", 0)),
    ).validate()


def record_of(path: Path) -> ChainRecord:
    """The record of the chain of a recording's file, as featurize stores it."""
    name = re.sub(r"((\.crop\d+)?\.seed\d+\.draws|\.det)$", "", path.stem)
    return from_raw_features(dict(np.load(path.with_name(f"{name}.raw.npz"))), "recorded_A")


def load_case(path: Path) -> Case:
    record = record_of(path)
    final = path.with_name(path.name.replace(".draws.", ".final."))
    draws, final = dict(np.load(path)), dict(np.load(final))
    supervised = record.all_atom_positions is not None
    preset = LoaderConfig.initial_training() if supervised else LoaderConfig.prediction()
    config = preset.replace(
        crop_size=final["aatype"].shape[0] if supervised else None,
        max_msa_clusters=final["msa_feat"].shape[0],
        max_extra_msa=final["extra_msa"].shape[0],
        max_templates=final["template_mask"].shape[0],
    )
    crop = recorded_crop(draws, config, record.num_res, record.num_templates)
    return Case(draws, final, config, chain_tensors(record, crop.templates, supervised=True), crop)


def recorded_crop(draws: dict[str, np.ndarray], config: LoaderConfig, length: int, T: int) -> Crop:
    ints = [int(draws[k][0]) for k in sorted(draws) if ".random_crop_to_size.randint." in k]
    first, order = 0, np.arange(T)
    if T and config.subsample_templates:
        first, order = ints.pop(0), draws["draw.random_crop_to_size.randperm.0"]
    templates = tuple(int(index) for index in order[first : first + config.max_templates])
    return Crop(ints[1], min(length, config.crop_size or length), templates)


class RecordedDraws(RecycleDraws):
    """`RecycleDraws` that replays OpenFold's recorded draws."""

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
