"""Long chains without a gradient: what is larger than the pairs is made a few rows at a time.

The memory model: beside the pairs, an update of them and what one operator keeps of them, nothing
may take more than a share of the device's memory. Each part of the model says how many bytes a row
of pairs costs it, and gets the number of rows that fit.

Letters: N residues, C channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from evofeed.loader import pseudo_beta
from evofeed.trainer.model.alphafold import AlphaFold
from evofeed.trainer.model.ipa import InvariantPointAttention, SharedTerms
from evofeed.trainer.model.primitives import at_least_float32, full_precision
from evofeed.trainer.model.rigid import Rigid
from evofeed.trainer.model.structure_module import StructureModule

SHARE = 1 / 64  # of a device's memory: 2 GiB of an H200's
ON_CPU = 2 << 30


def rows_at_once(nbytes: int, device: torch.device) -> int | None:
    """How many rows may be made at once; None: all of them, for there is a gradient.

    Args:
        nbytes: of one row.
        device: where.
    """
    if torch.is_grad_enabled():
        return None
    return max(1, _budget(device) // max(1, nbytes))


@cache
def _budget(device: torch.device) -> int:
    if device.type != "cuda":
        return ON_CPU
    return int(torch.cuda.get_device_properties(device).total_memory * SHARE)


def slices(first: int, last: int, at_once: int) -> Iterator[slice]:
    """A range in parts."""
    return (slice(n, min(n + at_once, last)) for n in range(first, last, at_once))


def _rows_of(z: Tensor, numbers: int) -> int | None:
    """How many rows of `[*, N, N, C]` at once at so many numbers of 4 bytes a pair; None: all."""
    at_once = rows_at_once(4 * numbers * z.shape[-2], z.device)
    return None if at_once is None or at_once >= z.shape[-2] else at_once


def embed_by_rows(model: AlphaFold, feats: dict[str, Tensor], previous: Any) -> Any:
    """`AlphaFold._embed`: MSA and pairs of the features and of the pass before."""
    target, embedder, recycling = (
        feats["target_feat"],
        model.input_embedder,
        model.recycling_embedder,
    )
    N, c_z = target.shape[-2], model.config.c_z
    at_once = rows_at_once(N * 4 * (3 * c_z + 200), target.device)
    if at_once is None or at_once >= N:
        return AlphaFold._embed(model, feats, previous)
    m = embedder.msa(target, feats["msa_feat"])
    z: Tensor | None = None
    if previous is None:
        m_prev, z_prev, x_prev = torch.zeros_like(m[..., 0, :, :]), None, target[..., :3] * 0
    else:
        m_prev, z_prev, atoms = previous
        x_prev = pseudo_beta(feats["aatype"], atoms)
    for rows in slices(0, N, at_once):
        new = embedder.pairs(target, embedder.relpos_of(feats, rows), rows)
        old = torch.zeros_like(new) if z_prev is None else z_prev[..., rows, :, :]
        m_update, update = recycling(m_prev, old, x_prev, rows)
        if z is None:
            z = new.new_empty(*new.shape[:-3], N, N, c_z)
        z[..., rows, :, :] = new + update
        del new, old, update
    m[..., 0, :, :] += m_update
    return m, z


def structure_by_rows(module: StructureModule) -> None:
    """Lets the structure module normalise pairs where it reads them, a few rows at a time.

    It needs them in float32, and whole they would be four times the pairs.
    """
    norm, ipa = module.layer_norm_z, module.ipa

    def structure(
        single: Tensor, pair: Tensor, aatype: Tensor, mask: Tensor
    ) -> dict[str, Tensor]:  # fmt: skip
        if _at_once(ipa, pair) is None:
            return type(module).forward(module, single, pair, aatype, mask)
        with full_precision(single):
            single = at_least_float32(single)
            return module._run(single, pair, aatype, mask.to(single.dtype))

    def normalised(z: Tensor) -> Tensor:
        return z if _at_once(ipa, z) else type(norm).forward(norm, z)

    def rows(z: Tensor) -> Iterator[tuple[slice, Tensor]]:
        for some in slices(0, z.shape[-2], _at_once(ipa, z) or z.shape[-2]):
            yield some, type(norm).forward(norm, at_least_float32(z[..., some, :, :]))

    module.forward = structure  # type: ignore[method-assign]
    norm.forward = normalised  # type: ignore[method-assign, assignment]
    ipa.share = partial(_share, ipa, rows)  # type: ignore[method-assign]
    ipa.forward = partial(_attend, ipa, rows)  # type: ignore[method-assign]


def _at_once(ipa: InvariantPointAttention, z: Tensor) -> int | None:
    return _rows_of(z, 3 * z.shape[-1] + 6 * ipa.no_heads)


def _share(ipa: InvariantPointAttention, rows: Any, z: Tensor, mask: Tensor) -> SharedTerms:
    if _at_once(ipa, z) is None:
        return type(ipa).share(ipa, z, mask)
    N = z.shape[-2]
    # The terms that do not look at pairs, from a chain of no residues.
    shared = type(ipa).share(ipa, z[..., :0, :0, :].to(mask.dtype), mask[..., :0])
    bias = mask.new_empty(*z.shape[:-3], ipa.no_heads, N, N)
    for some, part in rows(z):
        bias[..., some, :] = ipa.bias(part, mask[..., some], mask)
    return shared._replace(bias=bias)


def _attend(
    ipa: InvariantPointAttention, rows: Any, s: Tensor, z: Tensor, frames: Rigid, mask: Tensor,
    shared: SharedTerms | None = None,
) -> Tensor:  # fmt: skip
    if _at_once(ipa, z) is None:
        return type(ipa).forward(ipa, s, z, frames, mask, shared)
    shared = ipa.share(z, mask) if shared is None else shared
    (left, right), values, frames = ipa.project(s, frames, shared)
    found = [
        ipa.attend(
            (left[..., some, :], right), values, shared.bias[..., some, :], part,
            Rigid(frames.rots[..., some, :, :], frames.trans[..., some, :]),
        )
        for some, part in rows(z)
    ]  # fmt: skip
    return torch.cat(found, dim=-2)
