"""The model on the ranks of one axis, and whole on the first of them: says what differs.

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


def differences(
    build: Callable[[], AlphaFold], batch: dict[str, Tensor], axis: Axis
) -> dict[str, float]:
    """Largest difference of loss, outputs and each parameter's gradient, over its largest value.

    Some gradients are zero but for rounding: no softmax sees what is added to all its logits.
    They are compared with a thousandth of the largest gradient.
    """
    shared = parallelize(build(), axis)
    ours, our_outputs = _step(shared, batch, axis)
    for part in shared.parameters():
        if part.grad is not None:
            dist.all_reduce(part.grad, group=axis.group)
    if axis.rank:
        return {}
    whole = build()
    loss, outputs = _step(whole, batch)
    found = {"loss": _difference(ours, loss)}
    for name in ("msa", "pair", "single", "final_atom_positions", "distogram_logits"):
        found[f"output {name}"] = _difference(our_outputs[name], outputs[name])
    grads = [p.grad.abs().max().item() for p in whole.parameters() if p.grad is not None]
    for (name, one), part in zip(whole.named_parameters(), shared.parameters(), strict=True):
        assert (one.grad is None) == (part.grad is None), name
        if one.grad is None or part.grad is None:
            continue
        found[f"gradient {name}"] = _difference(part.grad / axis.size, one.grad, 1e-3 * max(grads))
    return found


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
    """As `differences`, of an Evoformer block on fused operators under Triton's interpreter."""
    from evofeed.kernels import to_fused
    from evofeed.kernels.runtime.backend import interpreted

    shared, given = small_stack(3, 5)
    m, z, msa_mask, pair_mask = given
    whole = copy.deepcopy(shared)
    to_fused(parallelize(shared, axis))
    found = {}
    with interpreted(), quick_interpreter():
        ours = _made(shared, m, z, msa_mask, pair_mask)
        for values in (ours["input"], ours["weight"]):
            for value in values.values():
                dist.all_reduce(value, group=axis.group)
                value /= axis.size
        if axis.rank:
            return {}
        theirs = _made(whole, m, z, msa_mask, pair_mask)
    least = 1e-3 * max(value.abs().max().item() for value in theirs["weight"].values())
    for kind, values in ours.items():
        for name, value in values.items():
            found[f"{kind} {name}"] = _difference(value, theirs[kind][name], least)
    return found


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
    """A block on fused operators that writes rows of the pairs over, in parts and at once."""
    from evofeed.kernels import to_fused
    from evofeed.kernels.runtime.backend import interpreted

    stack, (m, z, *masks) = small_stack(3, 5)
    to_fused(stack.eval())
    found, kept = {}, (rows.ON_CPU, triangle_product.MOST_WHOLE)
    triangle_product.MOST_WHOLE = 1  # a few channels at a time
    with interpreted(), quick_interpreter(), torch.no_grad():
        whole_m, whole_z, _ = stack(m, z, *masks)
        for nbytes in (500, kept[0]):
            rows.ON_CPU = nbytes
            rows._budget.cache_clear()
            mine = axis.part(z, -3).clone()
            over = replace(axis, in_place=True)
            made_m, made_z = msa_rows(stack, over, m, mine, *masks, mask_trans=True)
            assert made_z.data_ptr() == mine.data_ptr()
            found[f"{nbytes} z"] = _difference(made_z, axis.part(whole_z, -3))
            found[f"{nbytes} m"] = _difference(made_m, axis.part(whole_m, -3))
    rows.ON_CPU, triangle_product.MOST_WHOLE = kept
    rows._budget.cache_clear()
    return found


def _made(stack: nn.Module, m: Tensor, z: Tensor, *masks: Tensor) -> dict[str, dict[str, Tensor]]:
    """Outputs of a stack, and the gradients of its inputs and weights."""
    torch.manual_seed(7)
    given = {"m": m.clone().requires_grad_(), "z": z.clone().requires_grad_()}
    made = stack(*given.values(), *masks)
    sum(x.square().sum() for x in made).backward()
    return {
        "input": {name: x.grad for name, x in given.items() if x.grad is not None},
        "output": {str(n): x.detach() for n, x in enumerate(made)},
        "weight": {n: p.grad for n, p in stack.named_parameters() if p.grad is not None},
    }


def in_parts(axis: Axis) -> dict[str, float]:
    """Prediction by rows, all that is larger than the pairs in parts, against the whole at once.

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
    found, kept = {}, rows.ON_CPU
    for case, (config, batch) in cases.items():
        batch = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
        whole = _random(config).double().eval()
        shared = parallelize(copy.deepcopy(whole), axis)
        with torch.no_grad():
            expected = whole(batch)
            expected["pair"] = axis.part(expected["pair"], -3)
            for nbytes in (2000, kept):  # a row or two of everything; all at once
                rows.ON_CPU = nbytes
                rows._budget.cache_clear()
                made = shared(batch)
                found |= {
                    f"{case} {nbytes} {name}": _difference(made[name], expected[name])
                    for name in names if name in expected
                }  # fmt: skip
    rows._budget.cache_clear()
    return found


def few_residues(axis: Axis) -> dict[str, float]:
    """Prediction of a chain of one residue, of which only the first rank has a part."""
    batch = _batch(torch.float64, num_res=1, num_seq=1, num_extra_seq=2, num_templates=1)
    whole = _exact()().eval()
    shared = parallelize(copy.deepcopy(whole), axis)
    with torch.no_grad():
        made, expected = shared(batch), whole(batch)
    names = ("msa", "pair", "single", "final_atom_positions", "distogram_logits", "plddt")
    return {name: _difference(made[name], expected[name]) for name in names}


def products(axis: Axis) -> dict[str, float]:
    """The two ways to multiply rows of triangles, with their gradients, against the whole."""
    N, E = 7, 5
    torch.manual_seed(2)
    ab, d = torch.randn(2, E, 2, N, N).double(), torch.randn(E, 2, N, N).double()
    found = {}
    for outgoing in (True, False):
        whole = ab.clone().requires_grad_()
        a, b = whole
        expected = a @ b.mT if outgoing else a.mT @ b
        (expected * d).sum().backward()
        grad = whole.grad
        assert grad is not None
        for way in (RowProduct, ChannelProduct):
            product = way(axis, N)
            rows, kept = product(axis.part(ab, -2).contiguous(), outgoing)
            back = product.gradient(axis.part(d, -2).contiguous(), kept, outgoing)
            name = f"{way.__name__} {outgoing}"
            found[name] = _difference(rows, axis.part(expected.detach(), -2))
            found[f"{name} gradient"] = _difference(back, axis.part(grad, -2))
    return found


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
    found: dict[str, float] = {}
    for dtype, C in ((torch.bfloat16, 8), (torch.float32, 3)):
        torch.manual_seed(4)
        whole = torch.randn(2, 2, 7, C).to(dtype)
        for split, join in ((-2, -3), (-3, -2)):  # with an empty part on three ranks
            part = exchanged(axis.part(whole, join), axis, split, join, whole.shape[join])
            found[f"exchange {split} {dtype}"] = _difference(part, axis.part(whole, split))
        for dim in (-3, -2):
            name = f"{dim} {dtype}"
            made = gathered(axis.part(whole, dim), axis, dim, whole.shape[dim])
            found[f"gather {name}"] = _difference(made, whole)
            added = whole * (1 + axis.rank)
            expected = axis.part(whole, dim) * (axis.size * (axis.size + 1) // 2)
            found[f"reduce {name}"] = _difference(reduced(added, axis, dim), expected)
    small = (1, 4, 3, 8)
    found["checked"] = float(checked(axis, whole.device, small, 1) is not axis)
    spoilt = replace(axis, memory=cast(PeerMemory, Spoilt(axis.memory)))
    found["spoilt"] = float(checked(spoilt, whole.device, small, 1).memory is not None)
    assert not axis.memory.fits(torch.float32, 1 << 20) and not axis.memory.fits(torch.int32, 1)
    return found


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
    """Cases on 2, 3 or 4 ranks, then a run; the first rank writes what differs."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_default_dtype(torch.float32)
    odd = _batch(torch.float64, num_res=11, num_seq=5, num_extra_seq=7, num_templates=2,
                 no_recycling_iters=1)  # fmt: skip
    few = _batch(torch.float64, num_res=6, num_seq=1, num_extra_seq=2, num_templates=0)
    late = {"opm_first": True, "fuse_projection_weights": True}
    model = tiny().model
    assert model.template is not None
    other = {
        "evoformer": replace(model.evoformer, **late, no_column_attention=True),
        "extra_msa": replace(model.extra_msa, **late),
        "template": replace(model.template, tri_mul_first=True),
        "mask_trans": True,
        "activation_checkpointing": True,
    }
    found: dict[str, dict[str, float]] = {}

    def compare(name: str, case: Callable[..., dict[str, float]], *given: Any) -> None:
        began = time.perf_counter()
        found[name] = case(*given)
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
            compare("other", differences, _exact(**other), odd, axis)
        if ranks == 3:
            compare("odd", differences, _exact(), odd, axis)
            compare("parts", in_parts, axis)
            compare("products", products, axis)
            compare("memory", through_memory, axis, out)
        if ranks == 4:
            compare("few", differences, _exact(), few, axis)
    if rank == 0:
        (out / "found.json").write_text(json.dumps(found))
    train_shared(dataset, out / "run")
    chain = Dataset.open(dataset).index["chain_id"][0].as_py()
    words = ["predict", dataset, chain, "--checkpoint", out / "run", "--out", out / f"{chain}.pdb"]
    try:
        main_of_evofeed([*map(str, words), "--device", "cpu"])
    except SystemExit as done:
        assert not done.code
    dist.barrier()
    dist.destroy_process_group()
