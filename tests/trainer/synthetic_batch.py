"""The loader's batch of a synthetic record, or of several: a model's input without a dataset."""

from __future__ import annotations

import math

import torch
from tests.trainer.synthetic_records import synthetic_record
from torch import Tensor

from evofeed.loader import LoaderConfig, sample_batch
from evofeed.loader.draws import Crop, sample_key
from evofeed.loader.msa_draws import RecycleDraws
from evofeed.protein.features import BATCH

__all__ = ["synthetic_batch", "synthetic_complex"]


def synthetic_batch(
    *,
    num_res: int,
    num_seq: int,
    num_extra_seq: int,
    num_templates: int,
    no_recycling_iters: int = 0,
    batch_size: int = 1,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """All features of `protein.features.BATCH` of whole chains, float32, on `device`."""
    config = LoaderConfig(
        crop_size=None,
        max_msa_clusters=num_seq,
        max_extra_msa=num_extra_seq,
        max_templates=num_templates,
        num_blocks=0,
    )
    crop = Crop(0, num_res, tuple(range(num_templates)))
    samples = []
    for number in range(batch_size):
        record = synthetic_record(
            1000 * seed + number,
            num_res=num_res,
            num_rows=num_seq + num_extra_seq,
            num_templates=num_templates,
        )
        key, cycles = sample_key(seed, 0, number), range(no_recycling_iters + 1)
        draws = [RecycleDraws(config, key, cycle, torch.device("cpu")) for cycle in cycles]
        samples.append(sample_batch(record, config, crop, draws))
    axis = {feature.name: int(feature.stage == "recycle") for feature in BATCH}
    return {n: torch.cat([s[n] for s in samples], axis[n]).to(device) for n in samples[0]}


def synthetic_complex(
    *, num_chains: int, batch_size: int = 1, **sizes: int | torch.device | str
) -> dict[str, Tensor]:
    """`synthetic_batch` cut into chains of equal length, in the features of complexes.

    Half of the chains, rounded up, are copies of one sequence in name: they share its entity.
    """
    batch = synthetic_batch(batch_size=batch_size, **sizes)  # type: ignore[arg-type]
    num_res = batch["aatype"].shape[-1]
    chain = torch.arange(num_res) * num_chains // num_res
    first = torch.searchsorted(chain, torch.arange(num_chains))
    copies = (num_chains + 1) // 2
    ids = {
        "asym_id": chain + 1,
        "entity_id": (chain - copies).clamp(min=-1) + 2,
        "sym_id": torch.where(chain < copies, chain + 1, 1),
        "residue_index": torch.arange(num_res) - first[chain],
    }
    device = batch["aatype"].device
    batch |= {n: v.expand(batch_size, -1).contiguous().to(device) for n, v in ids.items()}
    deletions = 3 * torch.tan(batch.pop("extra_deletion_value") * (math.pi / 2))
    del batch["extra_has_deletion"]
    batch["extra_deletion_matrix"] = deletions.round()
    batch["target_feat"] = batch["target_feat"][..., 1:].contiguous()
    return batch
