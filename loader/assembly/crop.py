"""Crops of a complex: spatial, around an interface residue, or contiguous, a run of each chain.

Decided on the host in integer thousandths of an ångström, so that every machine selects the same
residues. Source: AlphaFold-Multimer, section 7.1 and algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evofeed.base.shapes import Float, Int
from evofeed.loader.config import AssemblyConfig
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.sample_draws import SampleDraws, contiguous_runs
from evofeed.protein.interfaces import UNIT, interface_residues
from evofeed.protein.residues import ATOM_ORDER

_CA = ATOM_ORDER["CA"]


def crop_residues(
    positions: Float[np.ndarray, "L 37 3"] | None,
    mask: np.ndarray | None,
    lengths: Sequence[int],
    crop_size: int | None,
    draws: SampleDraws,
    config: AssemblyConfig,
) -> Int[np.ndarray, " C"]:
    """Residues of the crop, ascending; all of them if there are at most `crop_size`."""
    total = sum(lengths)
    spatial = draws.bernoulli(Purpose.SPATIAL_CROP, config.spatial_crop_prob)
    if crop_size is None or total <= crop_size:
        return np.arange(total)
    if spatial and len(lengths) > 1 and positions is not None and mask is not None:
        asym_id = np.repeat(np.arange(len(lengths)), lengths)
        interface = interface_residues(
            positions,
            mask,
            asym_id,
            config.interface_threshold,
            same_atom=config.same_atom_interface,
        )
        has_interface = interface.any() if config.skip_first_interface else len(interface)
        if has_interface:
            centre = draws.choice(Purpose.INTERFACE, interface)
            return spatial_crop(positions, mask, centre, crop_size, config)
    return contiguous_crop(lengths, crop_size, draws)


def spatial_crop(
    positions: Float[np.ndarray, "L 37 3"],
    mask: np.ndarray,
    centre: int,
    crop_size: int,
    config: AssemblyConfig,
) -> Int[np.ndarray, " C"]:
    """The `crop_size` residues nearest to `centre` by CA; those without CA last, by index."""
    ca, has_ca = positions[:, _CA], mask[:, _CA] > 0
    target = ca[centre]
    if not has_ca[centre] and not config.missing_ca_at_origin:
        target = positions[centre][mask[centre] > 0].mean(0)
    if config.biased_distances:
        square = ((ca - target).astype(np.float32) ** 2).sum(-1, dtype=np.float32)
        bias = np.arange(len(ca), dtype=np.float32) * np.float32(1e-3)
        distance = np.where(has_ca, np.sqrt(square), np.float32(np.inf)) + bias
    else:
        step = np.rint(ca.astype(np.float64) * UNIT) - np.rint(target.astype(np.float64) * UNIT)
        distance = np.where(has_ca, (step**2).sum(-1), np.inf)  # integers: exact
    return np.sort(np.argsort(distance, kind="stable")[:crop_size])


def contiguous_crop(
    lengths: Sequence[int], crop_size: int, draws: SampleDraws
) -> Int[np.ndarray, " C"]:
    """A run of residues of each chain, `crop_size` in total, chains in random order."""
    starts = np.cumsum([0, *lengths])
    runs = contiguous_runs(lengths, crop_size, draws)
    return np.sort(
        np.concatenate([starts[chain] + first + np.arange(size) for chain, first, size in runs])
    )
