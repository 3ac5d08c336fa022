"""An entry of sixty copies through loader and labels: cropped, and every chain its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.loader.records import make_record, write_dataset

from evofeed.loader import AssemblyConfig, FeatureLoader, LoaderConfig
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.store import Dataset, add_assemblies
from evofeed.trainer.losses.chain_labels import GROUND_TRUTH, flat_batch, with_assigned_truth

pytestmark = pytest.mark.system  # its loader reads in a process

COPIES, LENGTH = 60, 8
CONFIG = LoaderConfig(
    crop_size=40, max_msa_clusters=4, max_extra_msa=8, max_templates=1, max_recycling_iters=0,
    assemblies=AssemblyConfig(msa_rows=16, paired_rows=8, min_rows=12),
)  # fmt: skip


def sixty(folder: Path) -> Dataset:
    """A ring of sixty copies of one chain."""
    chain = make_record("1big_A", LENGTH, 12, 0)
    assert chain.all_atom_positions is not None and chain.all_atom_mask is not None
    angles = np.arange(COPIES) * 2 * np.pi / COPIES
    places = 100 * np.stack([np.cos(angles), np.sin(angles), 0 * angles], -1)
    atoms = (chain.all_atom_positions + places[:, None, None]).reshape(-1, 37, 3)
    mask = np.tile(chain.all_atom_mask, (COPIES, 1))
    positions = np.round(atoms * mask[..., None], 3).astype(np.float32) + np.float32(0)
    record = AssemblyRecord(
        assembly_id="1big", chains=(chain,), pairing=(None,),
        copies=(tuple(f"A{n}" for n in range(COPIES)),), all_atom_positions=positions,
        all_atom_mask=mask, num_interface=COPIES * LENGTH,
    )  # fmt: skip
    add_assemblies(write_dataset(folder, [chain]), [record])
    return Dataset.open(str(folder))


def test_sixty_copies_are_cropped_and_each_has_labels_of_its_own(tmp_path: Path) -> None:
    dataset = sixty(tmp_path)
    with FeatureLoader(dataset.assemblies, CONFIG, device="cpu", reader="thread") as loader:
        batch = flat_batch(next(iter(loader)))
        most_chains = loader.most_chains
    assert most_chains == COPIES, "of the whole complex, not of its crop"
    batch = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
    real = batch["seq_mask"][0] > 0
    asym, number = batch["asym_id"][0][real], batch["residue_index"][0][real]
    assert 0 < len(asym) <= 40 and asym.min() >= 1 and asym.max() <= COPIES
    whole = batch[GROUND_TRUTH + "asym_id"][0]
    assert torch.bincount(whole, minlength=COPIES + 1)[1:].tolist() == [LENGTH] * COPIES
    truth = batch[GROUND_TRUTH + "all_atom_positions"][0]
    own = (asym - 1) * LENGTH + number
    predicted = torch.zeros_like(batch["all_atom_positions"])
    predicted[0, real] = truth[own]
    labels = with_assigned_truth({"final_atom_positions": predicted}, batch, most_chains)
    assert torch.equal(labels["all_atom_positions"][0, real], truth[own])
