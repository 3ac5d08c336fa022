"""The model sharded over the ranks of one axis, and unsharded on the first: their differences.

Then it trains on the dataset, in pairs of ranks and all together.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from tests.kernels.interpreter import quick_interpreter
from tests.trainer.conftest import small_run
from tests.trainer.synthetic_batch import synthetic_batch, synthetic_complex
from torch import Tensor, nn

from evofeed.cli import main as main_of_evofeed
from evofeed.kernels import PeerMemory
from evofeed.kernels.runtime import peer_memory
from evofeed.store import Dataset
from evofeed.trainer.config import OptimConfig, TrainConfig
from evofeed.trainer.losses import AlphaFoldLoss
from evofeed.trainer.model.alphafold import AlphaFold
from evofeed.trainer.model.config import EvoformerConfig, ModelConfig
from evofeed.trainer.model.evoformer import EvoformerStack
from evofeed.trainer.parallel import rows, triangle_product
from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.collectives import exchanged, gathered, reduced
from evofeed.trainer.parallel.losses import share_losses
from evofeed.trainer.parallel.parallelize import checked, parallelize
from evofeed.trainer.parallel.stacks import msa_rows
from evofeed.trainer.parallel.triangle_product import ChannelProduct, RowProduct
from evofeed.trainer.presets import tiny, tiny_multimer
from evofeed.trainer.run.train import train


def small_model(**changes: Any) -> AlphaFold:
    """A model of one or two blocks a stack whose weights are all random: AF2's start at zero."""
    return _random(replace(tiny().model, **changes)).train()


def _random(config: ModelConfig) -> AlphaFold:
    torch.manual_seed(1)
    twice = replace(config.structure_module, no_blocks=2)  # its blocks have the same weights
    model = AlphaFold(replace(config, structure_module=twice))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def sharded_model(
    build: Callable[[], AlphaFold], batch: dict[str, Tensor], axis: Axis
) -> dict[str, float]:
    """Largest difference of loss, outputs and each parameter's gradient, over its largest value.

    Some gradients are zero but for rounding: no softmax sees what is added to all its logits.
    They are compared with a thousandth of the largest gradient.
    """
    shared = parallelize(build(), axis)
    our_loss, our_outputs = _step(shared, batch, axis)
    for parameter in shared.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=axis.group)
    if axis.rank:
        return {}
    unsharded = build()
    loss, outputs = _step(unsharded, batch)
    differences = {"loss": _difference(our_loss, loss)}
    for name in ("msa", "pair", "single", "final_atom_positions", "distogram_logits"):
        differences[f"output {name}"] = _difference(our_outputs[name], outputs[name])
    grads = [p.grad.abs().max().item() for p in unsharded.parameters() if p.grad is not None]
    for (name, theirs), ours in zip(unsharded.named_parameters(), shared.parameters(), strict=True):
        assert (theirs.grad is None) == (ours.grad is None), name
        if theirs.grad is None or ours.grad is None:
            continue
        least = 1e-3 * max(grads)
        differences[f"gradient {name}"] = _difference(ours.grad / axis.size, theirs.grad, least)
    return differences


def _step(
    model: nn.Module, batch: dict[str, Tensor], axis: Axis | None = None
) -> tuple[Tensor, dict[str, Any]]:
    torch.manual_seed(7)  # of the dropout
    outputs = model(batch)
    make = AlphaFoldLoss(replace(tiny().loss, violation=0.5))
    loss, _ = (make if axis is None else share_losses(make, axis))(outputs, batch)
    loss.backward()
    return loss.detach(), outputs


def _difference(ours: Tensor, theirs: Tensor, least: float = 0.0) -> float:
    if not theirs.numel():
        return float(ours.shape != theirs.shape)
    scale = max(theirs.abs().max().item(), least)
    return (ours - theirs).abs().max().item() / (scale or 1.0)


def _batch(dtype: torch.dtype, **sizes: int) -> dict[str, Tensor]:
    batch = synthetic_batch(**sizes, seed=3)
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()}


def _exact(**changes: Any) -> Callable[[], AlphaFold]:
    return lambda: small_model(**changes).double()


def fused_block(axis: Axis) -> dict[str, float]:
    """As `sharded_model`, of an Evoformer block on fused operators under Triton's interpreter."""
    from evofeed.kernels import to_fused
    from evofeed.kernels.runtime.backend import interpreted

    shared, (m, z, msa_mask, pair_mask) = small_stack(3, 5)
    unsharded = copy.deepcopy(shared)
    to_fused(parallelize(shared, axis))
    differences = {}
    with interpreted(), quick_interpreter():
        ours = _results(shared, m, z, msa_mask, pair_mask)
        for values in (ours["input"], ours["weight"]):
            for value in values.values():
                dist.all_reduce(value, group=axis.group)
                value /= axis.size
        if axis.rank:
            return {}
        theirs = _results(unsharded, m, z, msa_mask, pair_mask)
    least = 1e-3 * max(value.abs().max().item() for value in theirs["weight"].values())
    for kind, values in ours.items():
        for name, value in values.items():
            differences[f"{kind} {name}"] = _difference(value, theirs[kind][name], least)
    return differences


def small_stack(S: int, N: int) -> tuple[EvoformerStack, tuple[Tensor, ...]]:
    """One block, with MSA, pairs and their masks."""
    sizes = EvoformerConfig(
        c_hidden_msa_att=8, no_heads_msa=2, c_hidden_opm=16, c_hidden_mul=16, c_hidden_pair_att=8,
        no_heads_pair=2, transition_n=2, msa_dropout=0.3, pair_dropout=0.3, no_blocks=1,
    )  # fmt: skip
    torch.manual_seed(1)
    stack = EvoformerStack(sizes, 16, 16, 16)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    m, z = torch.randn(1, S, N, 16), torch.randn(1, N, N, 16)
    masks = (torch.rand(1, n, N).gt(0.1).float() for n in (S, N))
    return stack, (m, z, *masks)


def fused_rows(axis: Axis) -> dict[str, float]:
    """A block on fused operators that overwrites its rows of the pairs, in chunks and at once."""
    from evofeed.kernels import to_fused
    from evofeed.kernels.runtime.backend import interpreted

    stack, (m, z, *masks) = small_stack(3, 5)
    to_fused(stack.eval())
    differences, limits = {}, (rows.CPU_BYTES, triangle_product.MAX_FULL_LENGTH)
    triangle_product.MAX_FULL_LENGTH = 1  # a few channels at a time
    with interpreted(), quick_interpreter(), torch.no_grad():
        whole_m, whole_z, _ = stack(m, z, *masks)
        for nbytes in (500, limits[0]):
            rows.CPU_BYTES = nbytes
            rows._budget.cache_clear()
            part = axis.part(z, -3).clone()
            in_place = replace(axis, in_place=True)
            new_m, new_z = msa_rows(stack, in_place, m, part, *masks, mask_trans=True)
            assert new_z.data_ptr() == part.data_ptr()
            differences[f"{nbytes} z"] = _difference(new_z, axis.part(whole_z, -3))
            differences[f"{nbytes} m"] = _difference(new_m, axis.part(whole_m, -3))
    rows.CPU_BYTES, triangle_product.MAX_FULL_LENGTH = limits
    rows._budget.cache_clear()
    return differences


def _results(
    stack: nn.Module, m: Tensor, z: Tensor, *masks: Tensor
) -> dict[str, dict[str, Tensor]]:
    """Outputs of a stack, and the gradients of its inputs and weights."""
    torch.manual_seed(7)
    inputs = {"m": m.clone().requires_grad_(), "z": z.clone().requires_grad_()}
    outputs = stack(*inputs.values(), *masks)
    sum(x.square().sum() for x in outputs).backward()
    return {
        "input": {name: x.grad for name, x in inputs.items() if x.grad is not None},
        "output": {str(n): x.detach() for n, x in enumerate(outputs)},
        "weight": {n: p.grad for n, p in stack.named_parameters() if p.grad is not None},
    }


def in_chunks(axis: Axis) -> dict[str, float]:
    """Prediction by rows with chunked intermediates, against the unsharded model.

    Of a chain with aligned errors, and of a complex.
    """
    sizes = {"num_res": 11, "num_seq": 5, "num_extra_seq": 7, "num_templates": 2,
             "no_recycling_iters": 1}  # fmt: skip
    cases = {
        "chain": (replace(tiny().model, tm_bins=64), synthetic_batch(**sizes, seed=3)),
        "complex": (tiny_multimer().model, synthetic_complex(**sizes, num_chains=3, seed=3)),
    }
    names = [
        "msa", "pair", "single", "final_atom_positions", "distogram_logits", "plddt", "ptm_score",
        "predicted_aligned_error", "iptm_score",
    ]  # fmt: skip
    differences, budget = {}, rows.CPU_BYTES
    for case, (config, batch) in cases.items():
        batch = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
        unsharded = _random(config).double().eval()
        shared = parallelize(copy.deepcopy(unsharded), axis)
        with torch.no_grad():
            expected = unsharded(batch)
            expected["pair"] = axis.part(expected["pair"], -3)
            for nbytes in (2000, budget):  # a row or two of everything; all at once
                rows.CPU_BYTES = nbytes
                rows._budget.cache_clear()
                outputs = shared(batch)
                differences |= {
                    f"{case} {nbytes} {name}": _difference(outputs[name], expected[name])
                    for name in names if name in expected
                }  # fmt: skip
    rows._budget.cache_clear()
    return differences


def few_residues(axis: Axis) -> dict[str, float]:
    """Prediction of a chain of one residue, of which only the first rank has a part."""
    batch = _batch(torch.float64, num_res=1, num_seq=1, num_extra_seq=2, num_templates=1)
    unsharded = _exact()().eval()
    shared = parallelize(copy.deepcopy(unsharded), axis)
    with torch.no_grad():
        outputs, expected = shared(batch), unsharded(batch)
    names = ("msa", "pair", "single", "final_atom_positions", "distogram_logits", "plddt")
    return {name: _difference(outputs[name], expected[name]) for name in names}


def products(axis: Axis) -> dict[str, float]:
    """The two ways to multiply rows of triangles, with their gradients, against the whole."""
    N, E = 7, 5
    torch.manual_seed(2)
    ab, d = torch.randn(2, E, 2, N, N).double(), torch.randn(E, 2, N, N).double()
    differences = {}
    for outgoing in (True, False):
        full = ab.clone().requires_grad_()
        a, b = full
        expected = a @ b.mT if outgoing else a.mT @ b
        (expected * d).sum().backward()
        grad = full.grad
        assert grad is not None
        for kind in (RowProduct, ChannelProduct):
            product = kind(axis, N)
            rows, saved = product(axis.part(ab, -2).contiguous(), outgoing)
            back = product.gradient(axis.part(d, -2).contiguous(), saved, outgoing)
            name = f"{kind.__name__} {outgoing}"
            differences[name] = _difference(rows, axis.part(expected.detach(), -2))
            differences[f"{name} gradient"] = _difference(back, axis.part(grad, -2))
    return differences


class Spoilt:
    """Memory whose sums are a little wrong on one rank."""

    def __init__(self, memory: PeerMemory) -> None:
        self._memory = memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memory, name)

    def reduce(self, x: Tensor, dim: int, out: Tensor | None = None) -> Tensor:
        return self._memory.reduce(x, dim, out) + 0.5 * (dist.get_rank() == 1)


def through_memory(axis: Axis, folder: Path) -> dict[str, float]:
    """Every exchange through shared memory: odd sizes, two types."""
    assert axis.group is not None
    axis = replace(axis, memory=shared_files(folder, axis.group))
    assert axis.memory is not None
    differences: dict[str, float] = {}
    for dtype, C in ((torch.bfloat16, 8), (torch.float32, 3)):
        torch.manual_seed(4)
        full = torch.randn(2, 2, 7, C).to(dtype)
        for split, join in ((-2, -3), (-3, -2)):  # with an empty part on three ranks
            part = exchanged(axis.part(full, join), axis, split, join, full.shape[join])
            differences[f"exchange {split} {dtype}"] = _difference(part, axis.part(full, split))
        for dim in (-3, -2):
            name = f"{dim} {dtype}"
            result = gathered(axis.part(full, dim), axis, dim, full.shape[dim])
            differences[f"gather {name}"] = _difference(result, full)
            added = full * (1 + axis.rank)
            expected = axis.part(full, dim) * (axis.size * (axis.size + 1) // 2)
            differences[f"reduce {name}"] = _difference(reduced(added, axis, dim), expected)
    small = (1, 4, 3, 8)
    differences["checked"] = float(checked(axis, full.device, small, 1) is not axis)
    spoilt = replace(axis, memory=cast(PeerMemory, Spoilt(axis.memory)))
    differences["spoilt"] = float(checked(spoilt, full.device, small, 1).memory is not None)
    assert not axis.memory.fits(torch.float32, 1 << 20) and not axis.memory.fits(torch.int32, 1)
    return differences


SLOT = 1 << 16
STEPS = 2


def shared_files(folder: Path, group: dist.ProcessGroup) -> PeerMemory:
    """Memory as GPUs of one host have, in files that all ranks of the group map."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    paths = [folder / f"peers.{size}.{n}" for n in range(size)]
    paths[rank].write_bytes(bytes(peer_memory.nbytes(SLOT)))
    dist.barrier(group)
    mapped = [
        torch.from_file(str(p), shared=True, size=peer_memory.nbytes(SLOT), dtype=torch.uint8)
        for p in paths
    ]
    return PeerMemory(mapped, rank)


def config(validate_every: int = 0, **changes: Any) -> TrainConfig:
    """The tiny preset, smaller; each sample's gradient is clipped before it counts."""
    loader = {"crop_size": 23, "max_msa_clusters": 7, "max_extra_msa": 11, "max_templates": 1}
    return small_run(
        loader=loader, checkpoint_every=0, validate_every=validate_every,
        optim=OptimConfig(warmup_steps=2, learning_rate=2e-3, clip="per_example"), **changes,
    )  # fmt: skip


def train_shared(dataset: str, out: Path) -> None:
    """Two samples a step: one for each pair of ranks, then one after the other for all four."""
    train(config(axial=2, steps=STEPS // 2), dataset, out=out, device="cpu")
    train(
        config(axial=4, accumulate=2, steps=STEPS, validate_every=STEPS), dataset, out=out,
        resume=True, validation=dataset, device="cpu",
    )  # fmt: skip


def main(out: Path, dataset: str) -> None:
    """Cases on 2, 3 or 4 ranks, then a run; the first rank writes the differences."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_default_dtype(torch.float32)
    odd = _batch(torch.float64, num_res=11, num_seq=5, num_extra_seq=7, num_templates=2,
                 no_recycling_iters=1)  # fmt: skip
    few_rows = _batch(torch.float64, num_res=6, num_seq=1, num_extra_seq=2, num_templates=0)
    v3 = {"opm_first": True, "fuse_projection_weights": True}
    model = tiny().model
    assert model.template is not None
    other = {
        "evoformer": replace(model.evoformer, **v3, no_column_attention=True),
        "extra_msa": replace(model.extra_msa, **v3),
        "template": replace(model.template, tri_mul_first=True),
        "mask_trans": True,
        "activation_checkpointing": True,
    }
    cases: dict[str, dict[str, float]] = {}

    def compare(name: str, case: Callable[..., dict[str, float]], *arguments: Any) -> None:
        began = time.perf_counter()
        cases[name] = case(*arguments)
        if rank == 0:
            print(name, round(time.perf_counter() - began, 1), flush=True)

    for ranks in range(2, size + 1):
        group = dist.new_group(range(ranks))
        if rank >= ranks:
            continue
        axis = Axis(group=group, rank=rank, size=ranks)
        if ranks == 2:
            compare("fused", fused_block, axis)
            compare("fused rows", fused_rows, axis)
            compare("few residues", few_residues, axis)
            compare("other", sharded_model, _exact(**other), odd, axis)
        if ranks == 3:
            compare("odd", sharded_model, _exact(), odd, axis)
            compare("chunks", in_chunks, axis)
            compare("products", products, axis)
            compare("memory", through_memory, axis, out)
        if ranks == 4:
            compare("few", sharded_model, _exact(), few_rows, axis)
    if rank == 0:
        (out / "cases.json").write_text(json.dumps(cases))
    train_shared(dataset, out / "run")
    chain = Dataset.open(dataset).index["chain_id"][0].as_py()
    words = ["predict", dataset, chain, "--checkpoint", out / "run", "--out", out / f"{chain}.pdb"]
    try:
        main_of_evofeed([*map(str, words), "--device", "cpu"])
    except SystemExit as done:
        assert not done.code
    dist.barrier()
    dist.destroy_process_group()
