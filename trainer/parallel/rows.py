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

from evofeed.protein.pseudo_beta import pseudo_beta
from evofeed.trainer.model.alphafold import AlphaFold
from evofeed.trainer.model.ipa import InvariantPointAttention, SharedTerms
from evofeed.trainer.model.primitives import at_least_float32, full_precision
from evofeed.trainer.model.rigid import Rigid
from evofeed.trainer.model.structure_module import StructureModule
from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.collectives import gathered

SHARE = 1 / 64  # of a device's memory: 2 GiB of an H200's
ON_CPU = 2 << 30


def rows_at_once(nbytes: int, device: torch.device) -> int | None:
    """How many rows may be made at once; None: all of them, for there is a gradient."""
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


def embedded_rows(
    model: AlphaFold, feats: dict[str, Tensor], previous: Any, first: int, last: int
) -> tuple[Tensor, Tensor]:
    """The whole MSA, and rows of the pairs, written over those rows of the pass before.

    `previous` is what that gave, with those rows of the pairs alone, or None.
    """
    target, embedder = feats["target_feat"], model.input_embedder
    recycling = model.recycling_embedder
    N, c_z = target.shape[-2], model.config.c_z
    m = embedder.msa(target, feats["msa_feat"])
    z: Tensor | None = None
    if previous is None:
        m_prev, z_prev, x_prev = torch.zeros_like(m[..., 0, :, :]), None, target[..., :3] * 0
    else:
        m_prev, z_prev, atoms = previous
        x_prev = pseudo_beta(feats["aatype"], atoms)
        z = z_prev
    m_update = recycling.layer_norm_m(m_prev)
    at_once = rows_at_once(N * 4 * (3 * c_z + 200), target.device) or N
    for rows in slices(first, last, at_once):
        here = slice(rows.start - first, rows.stop - first)
        new = embedder.pairs(target, embedder.relpos_of(feats, rows), rows)
        old = torch.zeros_like(new) if z_prev is None else z_prev[..., here, :, :]
        _, update = recycling(m_prev, old, x_prev, rows)
        if z is None:
            z = new.new_empty(*new.shape[:-3], last - first, N, c_z)
        z[..., here, :, :] = new + update
        del new, old, update
    assert z is not None  # of no residue there are no pairs
    m[..., 0, :, :] += m_update
    return m, z


def structure_by_rows(module: StructureModule, axis: Axis) -> None:
    """Lets the structure module normalise pairs where it reads them, a few rows at a time.

    It needs them in float32, and whole they would be four times the pairs. Where it is given
    this rank's rows of the pairs alone, each rank attends from its own residues.
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

    def rows(z: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """Places among all residues and in z, and those rows, normalised."""
        n, N = z.shape[-3:-1]
        first = axis.span(N)[0] if n < N else 0
        for some in slices(0, n, _at_once(ipa, z) or N):
            part = type(norm).forward(norm, at_least_float32(z[..., some, :, :]))
            yield slice(first + some.start, first + some.stop), some, part

    module.forward = structure  # type: ignore[method-assign]
    norm.forward = normalised  # type: ignore[method-assign, assignment]
    ipa.share = partial(_share, ipa, rows)  # type: ignore[method-assign]
    ipa.forward = partial(_attend, ipa, rows, axis)  # type: ignore[method-assign]


def _at_once(ipa: InvariantPointAttention, z: Tensor) -> int | None:
    """Rows of pairs that are read at once; None: z is whole, and all of it."""
    n, N = z.shape[-3:-1]
    at_once = rows_at_once(4 * (3 * z.shape[-1] + 6 * ipa.no_heads) * N, z.device)
    return None if at_once is None or (at_once >= N and n == N) else at_once


def _share(ipa: InvariantPointAttention, rows: Any, z: Tensor, mask: Tensor) -> SharedTerms:
    if _at_once(ipa, z) is None:
        return type(ipa).share(ipa, z, mask)
    # The terms that do not look at pairs, from a chain of no residues.
    shared = type(ipa).share(ipa, z[..., :0, :0, :].to(mask.dtype), mask[..., :0])
    bias = mask.new_empty(*z.shape[:-3], ipa.no_heads, *z.shape[-3:-1])
    for residues, here, part in rows(z):
        bias[..., here, :] = ipa.bias(part, mask[..., residues], mask)
    return shared._replace(bias=bias)


def _attend(
    ipa: InvariantPointAttention, rows: Any, axis: Axis, s: Tensor, z: Tensor, frames: Rigid,
    mask: Tensor, shared: SharedTerms | None = None,
) -> Tensor:  # fmt: skip
    if _at_once(ipa, z) is None:
        return type(ipa).forward(ipa, s, z, frames, mask, shared)
    shared = ipa.share(z, mask) if shared is None else shared
    (left, right), values, frames = ipa.project(s, frames, shared)
    found = [
        ipa.attend(
            (left[..., residues, :], right), values, shared.bias[..., here, :], part,
            Rigid(frames.rots[..., residues, :, :], frames.trans[..., residues, :]),
        )
        for residues, here, part in rows(z)
    ]  # fmt: skip
    n, N = z.shape[-3:-1]
    own = torch.cat([s[..., :0, :], *found], dim=-2)
    return own if n == N else gathered(own, axis, -2, N)


def out_of_memory(error: RuntimeError) -> str:
    """Its first line if memory was not given, else nothing."""
    first = str(error).partition("\n")[0]  # on a CPU the allocator's has no type of its own
    short = isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in first
    return first if short else ""
