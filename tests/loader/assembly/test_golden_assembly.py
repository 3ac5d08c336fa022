"""Recorded complexes: paired, merged, cropped and made into features as OpenFold did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import golden_files
from tests.loader.assembly.recorded_assembly import (
    CPU,
    Recorded,
    RecordedCrop,
    RecordedRecycle,
    load_assembly,
    load_sample,
)
from tests.loader.test_golden import same

from evofeed.loader.assembly.crop import crop_residues
from evofeed.loader.assembly.features import assembly_constants, assembly_recycle, ground_truth
from evofeed.loader.assembly.pairing import plan_rows
from evofeed.loader.batch import empty_batch, put
from evofeed.loader.config import AssemblyConfig, LoaderConfig
from evofeed.protein.features import ASSEMBLY_BATCH
from evofeed.protein.interfaces import interface_residues

ASSEMBLIES = golden_files("multimer/data/golden/*.assembly.npz")
SAMPLES = golden_files("multimer/data/golden/*.draws.npz")
TRUTHS = golden_files("multimer/data/golden/*.gt.npz")
CROPS = golden_files("multimer/data/golden/*.crops.npz")
OPENFOLD = AssemblyConfig.openfold(shared_coordinates=False)
NOT_MADE = {"num_alignments", "resolution", "seq_length", "use_clamped_fape"}
"""Scalars that are written into the batch directly."""


def of_name(path: Path) -> Recorded:
    return load_assembly(path.with_name(f"{path.name.split('.')[0]}.assembly.npz"))


@pytest.fixture(params=ASSEMBLIES, ids=lambda path: path.name)
def recorded(request: pytest.FixtureRequest, golden: Path) -> Recorded:
    return load_assembly(request.param)


@pytest.mark.parametrize("stable", [True, False])
def test_the_merged_example_is_the_recorded_one(recorded: Recorded, stable: bool) -> None:
    plan = plan_rows(recorded.record, AssemblyConfig()) if stable else recorded.unstable_plan()
    want = {k.removeprefix("np."): v for k, v in recorded.example.items() if k[:3] == "np."}
    if stable:
        want |= {k[7:]: v for k, v in recorded.example.items() if k.startswith("stable.")}
    assembly = recorded.merged(plan, AssemblyConfig.openfold())
    compared = 0
    count = assembly.info.num_rows
    rows_mask = np.zeros(assembly.msa.shape, np.int8)
    rows_mask[:count] = 1
    bias = np.zeros(len(assembly.msa), np.int8)
    bias[0] = 1
    got = {
        "aatype": assembly.aatype,
        "residue_index": assembly.residue_index,
        "asym_id": assembly.asym_id,
        "entity_id": assembly.entity_id,
        "sym_id": assembly.sym_id,
        "msa": assembly.msa,
        "deletion_matrix": assembly.deletions,
        "bert_mask": assembly.entity_cells(torch.arange(len(assembly.msa))),
        "template_aatype": assembly.template_aatype,
        "template_all_atom_positions": assembly.template_all_atom_positions,
        "template_all_atom_mask": assembly.template_all_atom_mask,
        "num_alignments": torch.tensor(count),
        "seq_length": torch.tensor(assembly.num_res),
        "assembly_num_chains": torch.tensor(assembly.info.num_chains),
        "entity_mask": (assembly.entity_id > 0),
        "seq_mask": torch.ones(assembly.num_res, dtype=torch.int8),
        "msa_mask": torch.from_numpy(rows_mask),
        "cluster_bias_mask": torch.from_numpy(bias),
    }
    if assembly.positions is not None and assembly.mask is not None:
        got |= {
            "all_atom_positions": assembly.positions,
            "all_atom_mask": assembly.mask.to(torch.int8),
        }
        got |= {"resolution": torch.tensor(assembly.info.resolution)}
    for name, value in want.items():
        if name in ("all_atom_positions", "all_atom_mask") and assembly.positions is None:
            continue  # without a structure it is made of the sequence: nobody reads it
        if name in ("num_templates", "deletion_mean"):
            continue  # of the first chain; of no use to anybody
        same(got[name].to(torch.float32 if value.dtype == np.float32 else torch.int64), value, name)
        compared += 1
    assert compared >= 18


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_every_recorded_feature_comes_out_of_the_replay(path: Path, golden: Path) -> None:
    recorded = of_name(path)
    draws, final, meta = load_sample(path)
    mode, recycles = meta["config"]["mode"], meta["recycling_dim"]
    crops = bool(mode["crop"])
    config = LoaderConfig(
        crop_size=int(mode["crop_size"]) if crops else None,
        max_msa_clusters=int(mode["max_msa_clusters"]),
        max_extra_msa=int(mode["max_extra_msa"]),
        max_templates=int(mode["max_templates"]),
        supervised=bool(mode["supervised"]),
        assemblies=OPENFOLD,
    )
    rules = OPENFOLD.replace(
        spatial_crop_prob=mode.get("spatial_crop_prob") or 0.0,
        interface_threshold=mode.get("interface_threshold") or 10.0,
    )
    assembly = recorded.merged(recorded.unstable_plan(), rules, meta["coords"])
    lengths = recorded.lengths
    positions = None if assembly.positions is None else assembly.positions.numpy()
    mask = None if assembly.mask is None else assembly.mask.numpy()
    crop = crop_residues(
        positions,
        mask,
        lengths,
        config.crop_size,
        RecordedCrop(draws, rules.spatial_crop_prob),
        rules,
    )
    if crops and "mid.crop_idxs" in draws:
        unresolved_alike(crop, draws["mid.crop_idxs"], mask)
        crop = draws["mid.crop_idxs"].astype(np.int64)
    assembly = replace(assembly, crop=torch.from_numpy(crop))
    templates = () if crops else tuple(range(assembly.template_aatype.shape[0]))
    num_res = config.crop_size or assembly.num_res
    batch = empty_batch(
        config, num_res=num_res, batch_size=1, recycles=recycles, device=CPU, table=ASSEMBLY_BATCH
    )
    put(batch, assembly_constants(assembly, templates, config), 0)
    for recycle in range(recycles):
        fraction = mode["masked_msa_replace_fraction"]
        of_recycle = RecordedRecycle(draws, recycle, assembly.info.num_rows, fraction)
        features = assembly_recycle(assembly, of_recycle, config)
        put(batch, features, recycle, 0)
    compared = 0
    for name, want in final.items():
        if name in NOT_MADE:
            continue
        for recycle in range(recycles):
            value = want[..., recycle] if recycles > 1 else want
            got = batch[name][recycle, 0] if batch[name].dim() == value.ndim + 2 else batch[name][0]
            same(got.to(torch.float32 if value.dtype == np.float32 else torch.int64), value, name)
        compared += 1
    assert compared == len(set(final) - NOT_MADE) > 20


def unresolved_alike(got: np.ndarray, want: np.ndarray, mask: np.ndarray | None) -> None:
    """Asserts the same residues; of those without CA, unordered upstream, the same number."""
    assert len(got) == len(want)
    if mask is not None:
        assert np.array_equal(got[mask[got, 1] > 0], want[mask[want, 1] > 0])


@pytest.mark.parametrize("path", CROPS, ids=lambda path: path.name)
def test_recorded_crops_come_out_of_their_draws(path: Path, golden: Path) -> None:
    recorded, crops = of_name(path), dict(np.load(path))
    positions = recorded.example["fixed.all_atom_positions"]
    mask = recorded.example["fixed.all_atom_mask"]
    lengths = recorded.lengths
    asym_id = np.repeat(np.arange(len(lengths)), lengths)
    count = 1 + max(int(name.split(".")[0]) for name in crops if name != "meta")
    for number in range(count):
        kind, size, threshold = crops[f"{number}.kind_size_threshold"].tolist()
        rules = OPENFOLD.replace(interface_threshold=float(threshold))
        draws = {
            "draw.random_crop_to_size.rand.0": np.zeros(1) if kind == "spatial" else np.ones(1)
        }
        ints = crops[f"{number}.randint_low_high_value"] + np.array([0, 1, 0])
        if f"{number}.randperm" in crops:
            draws["draw.get_contiguous_crop_idx.randperm.0"] = crops[f"{number}.randperm"]
            draws |= {f"draw.get_contiguous_crop_idx.randint.{i}": v for i, v in enumerate(ints)}
        else:
            draws["draw.get_spatial_crop_idx.randint.0"] = ints[0]
        if f"{number}.interface_residues" in crops:
            interface = interface_residues(
                positions, mask, asym_id, rules.interface_threshold, same_atom=True
            )
            assert np.array_equal(interface, crops[f"{number}.interface_residues"])
        got = crop_residues(positions, mask, lengths, int(size), RecordedCrop(draws, 0.5), rules)
        unresolved_alike(got, crops[f"{number}.crop_idxs"], mask)


@pytest.mark.parametrize("path", TRUTHS, ids=lambda path: path.name)
def test_the_uncropped_truth_is_the_recorded_one(path: Path, golden: Path) -> None:
    recorded, want = of_name(path), dict(np.load(path))
    shared = "upstreamcoords" in path.name
    config = AssemblyConfig(shared_coordinates=shared)
    got = ground_truth(recorded.merged(recorded.unstable_plan(), config))
    compared = 0
    for name, value in want.items():
        if name == "meta":
            continue
        field = name.removeprefix("gt.")
        values = got[field].to(torch.float32 if value.dtype == np.float32 else torch.int64)
        if "sin_cos" in field:
            is_known = want["gt.chi_mask" if "chi" in field else "gt.torsion_angles_mask"] == 1
            same(values[torch.from_numpy(is_known)], value[is_known], field, atol=1e-4)
        else:
            same(values, value, field)
        compared += 1
    assert compared >= 25
