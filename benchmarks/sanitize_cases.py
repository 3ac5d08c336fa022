"""What `sanitize_kernels.py` runs: every kernel, at small odd sizes and as wide as in AF2.

A group is one process; a case is a name and a call.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evofeed.kernels.runtime.cases import Draw, Maker, Op

KINDS = ("bfloat16", "float32")
GROUPS = (
    *(f"bfloat16 {part}" for part in ("wide blocks", "wide attentions", "wide modules")),
    *(f"{kind} {part}" for part in ("blocks", "modules", "ops") for kind in KINDS),
    "optimizers",
    "loader",
)
S, R = 5, 37  # odd, and more than one tile of 32
C_M, C_Z = 32, 64
EVEN = 36  # residues whose pairs the triangle kernels for Hopper take
MULTIPROCESSORS = 3  # as if there were so few: programs that walk over tiles take several each


Case = tuple[str, Callable[[], Any]]


def both(*outs: Tensor) -> None:
    """Forward has run; this is the backward pass."""
    torch.autograd.backward(outs, [torch.randn_like(o) for o in outs])


class Inputs:
    """Random tensors of one type on one device."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype

    def rand(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device).to(self.dtype).requires_grad_()

    def mask(self, *shape: int) -> Tensor:
        return (torch.rand(shape, device=self.device) > 0.2).to(self.dtype)


def ops(given: Inputs) -> Iterator[Case]:
    """Each operator with the cases that its folder declares, and attention over many tiles."""
    from evofeed.kernels.runtime.cases import declared

    draw = Draw(S, R, given.device, given.dtype)
    # 130 and 512 long: many tiles, which fit at once or not
    longer = [Draw(S, N, given.device, given.dtype) for N in (130, 512)]
    for name, it in declared().items():
        wanted = [(case, maker, draw) for case, maker in {**it.cases, **it.wide}.items()]
        if name == "attention":
            wanted += [("heads 32 wide", it.wide["heads 32 wide"], sizes) for sizes in longer]
        for case, maker, sizes in wanted:

            def run(maker: Maker = maker, sizes: Draw = sizes, op: Op = it.op) -> None:
                made = maker(sizes)
                both(made.call(op)(*(t.requires_grad_() for t in made.tensors.values())))

            yield f"{name}, {case}, R={sizes.residues}", run


Makers = list[partial[Tensor]]


def fused(given: Inputs, found: list[tuple[nn.Module, Makers]]) -> Iterator[Case]:
    """Each module's fused forward and backward pass."""
    from evofeed.kernels import to_fused

    for plain, makers in found:
        name = f"{type(plain).__name__} C={makers[0].args[-1]}"
        module: nn.Module = to_fused(plain.to(given.device, given.dtype))
        yield (
            name,
            lambda module=module, makers=makers: both(module(*(make() for make in makers))),
        )


def modules(given: Inputs) -> Iterator[Case]:
    """What a block is made of, each module alone."""
    from evofeed.trainer.model import msa_attention, triangle
    from evofeed.trainer.model.outer_product_mean import OuterProductMean
    from evofeed.trainer.model.transition import MSATransition, PairTransition

    m, z = partial(given.rand, 1, S, R, C_M), partial(given.rand, 1, R, R, C_Z)
    of_msa, of_pairs = partial(given.mask, 1, S, R), partial(given.mask, 1, R, R)
    yield from fused(given, [
        (triangle.TriangleMultiplicationOutgoing(C_Z, 32), [z, of_pairs]),
        (triangle.TriangleMultiplicationIncoming(C_Z, 32), [z, of_pairs]),
        (triangle.TriangleAttentionStartingNode(C_Z, 16, 4), [z, of_pairs]),
        (triangle.TriangleAttentionEndingNode(C_Z, 16, 4), [z, of_pairs]),
        (msa_attention.MSARowAttentionWithPairBias(C_M, C_Z, 8, 4), [m, z, of_msa]),
        (msa_attention.MSAColumnAttention(C_M, 8, 4), [m, of_msa]),
        (msa_attention.MSAColumnGlobalAttention(C_M, 8, 4), [m, of_msa]),
        (MSATransition(C_M, 2), [m, of_msa]),
        (PairTransition(C_Z, 2), [z, of_pairs]),
        (OuterProductMean(C_M, C_Z, 16), [m, of_msa]),
    ])  # fmt: skip


def wide_attentions(given: Inputs) -> Iterator[Case]:
    """Attentions as wide as AF2's, which Hopper has kernels of its own for."""
    from evofeed.trainer.model import msa_attention, triangle

    z, of_pairs = partial(given.rand, 1, R, R, 128), partial(given.mask, 1, R, R)
    m, of_msa = partial(given.rand, 1, S, R, 256), partial(given.mask, 1, S, R)
    yield from fused(given, [
        (triangle.TriangleAttentionStartingNode(128, 32, 4), [z, of_pairs]),
        (triangle.TriangleAttentionEndingNode(128, 32, 4), [z, of_pairs]),
        (msa_attention.MSARowAttentionWithPairBias(256, 128, 32, 8), [m, z, of_msa]),
        (msa_attention.MSAColumnAttention(256, 32, 8), [m, of_msa]),
    ])  # fmt: skip


def wide_modules(given: Inputs) -> Iterator[Case]:
    """Other modules as wide as AF2's."""
    from evofeed.trainer.model import triangle
    from evofeed.trainer.model.outer_product_mean import OuterProductMean
    from evofeed.trainer.model.transition import MSATransition, PairTransition

    z64, z128 = (partial(given.rand, 1, EVEN, EVEN, C) for C in (64, 128))
    m64, m256 = (partial(given.rand, 1, S, R, C) for C in (64, 256))
    of_msa, of_pairs = partial(given.mask, 1, S, R), partial(given.mask, 1, EVEN, EVEN)
    yield from fused(given, [
        (triangle.TriangleMultiplicationOutgoing(64, 64), [z64, of_pairs]),
        (triangle.TriangleMultiplicationOutgoing(128, 128), [z128, of_pairs]),
        (triangle.TriangleMultiplicationIncoming(128, 128), [z128, of_pairs]),
        (MSATransition(64, 4), [m64, of_msa]),
        (MSATransition(256, 4), [m256, of_msa]),
        (PairTransition(128, 4), [z128, of_pairs]),
        (OuterProductMean(256, 128, 32), [m256, of_msa]),
    ])  # fmt: skip


def of_blocks(given: Inputs, residues: int, C_m: int, C_z: int, **sizes: int) -> Iterator[Case]:
    """Both kinds of block with these sizes; of the extra MSA, 64 channels at most."""
    from evofeed.kernels import to_fused
    from evofeed.trainer.model.config import EvoformerConfig, ExtraMSAConfig
    from evofeed.trainer.model.evoformer import EvoformerBlock, ExtraMSABlock

    rand, mask, N = given.rand, given.mask, residues
    of_extra = ExtraMSAConfig(**{**sizes, "c_hidden_msa_att": 8})  # type: ignore[arg-type]
    for name, block, C in (
        ("EvoformerBlock", EvoformerBlock(EvoformerConfig(**sizes), C_m, C_z), C_m),  # type: ignore[arg-type]
        ("ExtraMSABlock", ExtraMSABlock(of_extra, min(64, C_m), C_z), min(64, C_m)),
    ):
        module: nn.Module = to_fused(block).to(given.device, given.dtype)
        yield (
            name,
            lambda module=module, C=C: both(
                *module(*(rand(1, S, N, C), rand(1, N, N, C_z)), *(mask(1, S, N), mask(1, N, N)))
            ),
        )


def blocks(given: Inputs) -> Iterator[Case]:
    """Whole blocks, with what their ops hand through to each other."""
    yield from of_blocks(
        given, R, C_M, C_Z, c_hidden_msa_att=8, c_hidden_opm=16, c_hidden_mul=32,
        c_hidden_pair_att=16, no_heads_msa=4, no_heads_pair=4, transition_n=2,
    )  # fmt: skip


def wide_blocks(given: Inputs) -> Iterator[Case]:
    """Blocks as wide as AF2's."""
    yield from of_blocks(given, EVEN, 256, 128)


def optimizers(device: str) -> Iterator[Case]:
    from evofeed.kernels import FusedAdamEMA

    for size in (5, 16, 5000):
        a, b, c, d, e = (torch.rand(size, device=device) for _ in range(5))
        low = torch.zeros(size, device=device, dtype=torch.bfloat16)
        yield f"Adam {size}", FusedAdamEMA(a, b, c, d, e, low, max_norm=0.1).step


def loader(device: str) -> Iterator[Case]:
    """Features of samples, made by the kernels from a slot's bytes."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tests.loader.made import make_batch
    from tests.loader.records import make_record, write_dataset

    from evofeed.loader import LoaderConfig, draws
    from evofeed.loader.plan import SamplePlan

    config = LoaderConfig(
        crop_size=20, max_msa_clusters=6, max_extra_msa=12, max_templates=2, max_recycling_iters=1
    )
    bare = LoaderConfig.prediction(max_msa_clusters=8, max_extra_msa=50, max_templates=1)
    odd = make_record("odd_A", 30, 40, 2)
    assert odd.all_atom_positions is not None
    exceptions = odd.all_atom_positions.copy()
    exceptions[3] += exceptions.dtype.type(3e-4) * (exceptions[3] != 0)  # no thousandths
    records = [
        make_record("smallest", 1, 1, 0), make_record("plain", 40, 70, 4),
        odd.replace(chain_id="exceptions", all_atom_positions=exceptions),
        make_record("distillation", 18, 60, 1).replace(is_distillation=True),
        make_record("bare", 22, 30, 0, structure=False),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        dataset = write_dataset(Path(folder) / "d", records)
        for row, name in enumerate(dataset):
            samples = (SamplePlan(0, 0, 0, row, draws.sample_key(7, 0, row)),)
            chosen = bare if name == "bare" else config
            yield (
                name,
                partial(make_batch, dataset, chosen, samples, 2, fused=True, device=device),
            )


PARTS: dict[str, Callable[[Inputs], Iterator[Case]]] = {
    "ops": ops, "modules": modules, "blocks": blocks, "wide attentions": wide_attentions,
    "wide modules": wide_modules, "wide blocks": wide_blocks,
}  # fmt: skip


def cases_of(group: str, device: str) -> Iterator[Case]:
    """The cases of a group, in order."""
    kind, _, part = group.partition(" ")
    if part:
        return PARTS[part](Inputs(device, getattr(torch, kind)))
    return {"optimizers": optimizers, "loader": loader}[group](device)
