"""Chunking of long chains without a gradient: large intermediates are made some rows at a time.

The memory model: apart from the pairs, an update of them and what one operator stores of them,
nothing may take more than a share of the device's memory. Each part of the model states how many
bytes it needs per row of pairs, and gets the number of rows that fit: its chunk size.

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

MEMORY_SHARE = 1 / 64  # of a device's memory: 2 GiB of an H200's
CPU_BYTES = 2 << 30


def rows_per_chunk(row_bytes: int, device: torch.device) -> int | None:
    """The rows that fit into the memory budget; None: all of them, as there is a gradient."""
    if torch.is_grad_enabled():
        return None
    return max(1, _budget(device) // max(1, row_bytes))


@cache
def _budget(device: torch.device) -> int:
    if device.type != "cuda":
        return CPU_BYTES
    return int(torch.cuda.get_device_properties(device).total_memory * MEMORY_SHARE)


def chunks(first: int, last: int, chunk_size: int) -> Iterator[slice]:
    """Slices of at most `chunk_size` that cover a range."""
    return (slice(n, min(n + chunk_size, last)) for n in range(first, last, chunk_size))


def embedded_rows(
    model: AlphaFold, feats: dict[str, Tensor], previous: Any, first: int, last: int
) -> tuple[Tensor, Tensor]:
    """The full MSA, and rows of the pairs, which overwrite those rows of the previous pass.

    `previous` is the output of that pass, with only those rows of the pairs, or None.
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
    chunk_size = rows_per_chunk(N * 4 * (3 * c_z + 200), target.device) or N
    for rows in chunks(first, last, chunk_size):
        here = slice(rows.start - first, rows.stop - first)
        new = embedder.pairs(target, embedder.relpos_of(feats, rows), rows)
        old = torch.zeros_like(new) if z_prev is None else z_prev[..., here, :, :]
        _, update = recycling(m_prev, old, x_prev, rows)
        if z is None:
            z = new.new_empty(*new.shape[:-3], last - first, N, c_z)
        z[..., here, :, :] = new + update
        del new, old, update
    assert z is not None  # there is at least one residue
    m[..., 0, :, :] += m_update
    return m, z


def chunk_structure_module(module: StructureModule, axis: Axis) -> None:
    """Makes the structure module normalise pairs where it reads them, a chunk of rows at a time.

    It needs them in float32, and all at once they would take four times the pairs' memory. If it
    gets only this rank's rows of the pairs, each rank attends from its own residues.
    """
    norm, ipa = module.layer_norm_z, module.ipa

    def structure(single: Tensor, pair: Tensor, aatype: Tensor, mask: Tensor) -> dict[str, Tensor]:
        if _chunk_size(ipa, pair) is None:
            return type(module).forward(module, single, pair, aatype, mask)
        with full_precision(single):
            single = at_least_float32(single)
            return module._run(single, pair, aatype, mask.to(single.dtype))

    def normalised(z: Tensor) -> Tensor:
        return z if _chunk_size(ipa, z) else type(norm).forward(norm, z)

    def rows(z: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """Slices of all residues and of z's rows, and those rows, normalised."""
        n, N = z.shape[-3:-1]
        first = axis.span(N)[0] if n < N else 0
        for chunk in chunks(0, n, _chunk_size(ipa, z) or N):
            part = type(norm).forward(norm, at_least_float32(z[..., chunk, :, :]))
            yield slice(first + chunk.start, first + chunk.stop), chunk, part

    module.forward = structure  # type: ignore[method-assign]
    norm.forward = normalised  # type: ignore[method-assign, assignment]
    ipa.share = partial(_share, ipa, rows)  # type: ignore[method-assign]
    ipa.forward = partial(_attend, ipa, rows, axis)  # type: ignore[method-assign]


def _chunk_size(ipa: InvariantPointAttention, z: Tensor) -> int | None:
    """Rows of pairs per chunk; None: z has all rows, and all fit."""
    n, N = z.shape[-3:-1]
    chunk_size = rows_per_chunk(4 * (3 * z.shape[-1] + 6 * ipa.no_heads) * N, z.device)
    return None if chunk_size is None or (chunk_size >= N and n == N) else chunk_size


def _share(ipa: InvariantPointAttention, rows: Any, z: Tensor, mask: Tensor) -> SharedTerms:
    if _chunk_size(ipa, z) is None:
        return type(ipa).share(ipa, z, mask)
    # The terms that do not depend on pairs, from a chain of no residues.
    shared = type(ipa).share(ipa, z[..., :0, :0, :].to(mask.dtype), mask[..., :0])
    bias = mask.new_empty(*z.shape[:-3], ipa.no_heads, *z.shape[-3:-1])
    for residues, here, part in rows(z):
        bias[..., here, :] = ipa.bias(part, mask[..., residues], mask)
    return shared._replace(bias=bias)


def _attend(
    ipa: InvariantPointAttention, rows: Any, axis: Axis, s: Tensor, z: Tensor, frames: Rigid,
    mask: Tensor, shared: SharedTerms | None = None,
) -> Tensor:  # fmt: skip
    if _chunk_size(ipa, z) is None:
        return type(ipa).forward(ipa, s, z, frames, mask, shared)
    shared = ipa.share(z, mask) if shared is None else shared
    (left, right), values, frames = ipa.project(s, frames, shared)
    updates = [
        ipa.attend(
            (left[..., residues, :], right), values, shared.bias[..., here, :], part,
            Rigid(frames.rots[..., residues, :, :], frames.trans[..., residues, :]),
        )
        for residues, here, part in rows(z)
    ]  # fmt: skip
    n, N = z.shape[-3:-1]
    update = torch.cat([s[..., :0, :], *updates], dim=-2)
    return update if n == N else gathered(update, axis, -2, N)


def out_of_memory(error: RuntimeError) -> str:
    """First line of an out-of-memory error; empty for another error."""
    first = str(error).partition("\n")[0]  # the CPU allocator's error has no special type
    short = isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in first
    return first if short else ""
