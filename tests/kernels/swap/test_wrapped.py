"""`to_fused` before and after everything that people wrap models in, on a CPU.

Each model computes what it computed without a swap, forward and backward. Once at a time: one
process of one rank is enough to see whether a wrapper and a swap get into each other's way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jaxtyping
import pytest
import torch
import torch.distributed as dist
from tests.kernels.af3 import boltz, openfold3, protenix
from tests.kernels.af3.test_promise import Adapted
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from evofeed.kernels import SwapReport, to_fused, to_torch
from evofeed.kernels.fused_module import Fused
from evofeed.kernels.runtime import backend
from evofeed.kernels.runtime.backend import plain_versions
from evofeed.kernels.swap.forms import FORMS
from evofeed.kernels.swap.tokens import pad_atoms
from evofeed.trainer import AlphaFold, tiny

pytestmark = pytest.mark.slow

C, N = 16, 6


class Stack(nn.Module):
    """A block and a norm behind it, called with pairs and their mask."""

    def __init__(self, block: nn.Module, call: Callable[[Any, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.block, self.norm, self.call = block, nn.LayerNorm(C), call
        self.recompute = False

    def forward(self, z: Tensor, mask: Tensor) -> Tensor:
        if self.recompute:
            out: Tensor = checkpoint(self._blocks, z, mask, use_reentrant=False)
            return out
        return self._blocks(z, mask)

    def _blocks(self, z: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.norm(self.call(self.block, z, mask))
        return out


def _plain() -> Stack:
    layer = nn.TransformerEncoderLayer(C, 2, 2 * C, dropout=0.0, batch_first=True)
    return Stack(layer, lambda block, z, mask: block(z[0])[None])


class Narrow(nn.Module):
    """OpenFold's pair block between layers that bring it to the width of the others."""

    def __init__(self) -> None:
        super().__init__()
        model = tiny().model
        block = replace(model.evoformer, no_blocks=1, pair_dropout=0.0, msa_dropout=0.0)
        self.inner = AlphaFold(replace(model, evoformer=block)).evoformer.blocks[0].pair_stack
        self.up, self.down = nn.Linear(C, model.c_z), nn.Linear(model.c_z, C)

    def forward(self, z: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.down(self.inner(self.up(z), mask))
        return out


def _openfold() -> Stack:
    return Stack(Narrow(), lambda block, z, mask: block(z, mask))


def _openfold3() -> Stack:
    block = openfold3.PairBlock(C, C, 8, 2, 2, 0.0)
    return Stack(block, lambda block, z, mask: block(z, mask))


def _boltz() -> Stack:
    block = boltz.PairformerNoSeqLayer(C, dropout=0.0, pairwise_head_width=8, pairwise_num_heads=2)
    return Stack(block, lambda block, z, mask: block(z, mask))


def _protenix() -> Stack:
    block = protenix.PairformerBlock(2, C, 0, C, 8, 2, 2, 0.0)
    return Stack(block, lambda block, z, mask: block(None, z, mask)[1])


MODELS = {
    "plain torch": _plain, "OpenFold": _openfold, "OpenFold3": _openfold3, "Boltz": _boltz,
    "Protenix": _protenix,
}  # fmt: skip


def _fsdp(model: Stack) -> Callable[..., Tensor]:
    return _sharded(model, [model.block])


def _fsdp_inside(model: Stack) -> Callable[..., Tensor]:
    """Each part of the block for itself: what the first call of the root sets up."""
    return _sharded(model, [part for part in model.block.children() if [*part.parameters()]])


def _sharded(model: Stack, parts: list[nn.Module]) -> Callable[..., Tensor]:
    # here: it takes two seconds to import, of every worker that collects
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))
    for part in (*parts, model):
        fully_shard(part, mesh=mesh)
    return model


def _ddp(model: Stack) -> Callable[..., Tensor]:
    return DistributedDataParallel(model)


def _compiled(model: Stack) -> Callable[..., Tensor]:
    return torch.compile(model, backend="eager")  # type: ignore[return-value]


def _exported(model: Stack) -> Callable[..., Tensor]:
    return torch.export.export(model, _inputs()).module()


def _checkpointed(model: Stack) -> Callable[..., Tensor]:
    model.recompute = True
    return model


def _hooked(model: Stack) -> Callable[..., Tensor]:
    """A hook that changes a result must go on changing it."""
    leaf = next(m for m in model.block.modules() if not [*m.children()] and [*m.parameters()])
    leaf.register_forward_hook(lambda module, given, out: 1.5 * out)
    model.block.register_forward_pre_hook(lambda module, given: None)
    return model


def _adapted(model: Stack) -> Callable[..., Tensor]:
    """LoRA: a layer that is more than its weight."""
    above = next(
        (m, name) for m in model.block.modules() for name, inner in m.named_children()
        if type(inner) is nn.Linear
    )  # fmt: skip
    torch.manual_seed(3)
    setattr(above[0], above[1], Adapted(getattr(above[0], above[1])))
    return model


def _quantised(model: nn.Module) -> Callable[..., Tensor]:
    """Weights of linear layers in 8 bits, which PyTorch reads and no kernel does."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model, Int8WeightOnlyConfig())
    return model


WRAPPERS = {
    "FSDP2": _fsdp, "FSDP2 of parts": _fsdp_inside, "DDP": _ddp, "compile": _compiled,
    "export": _exported, "checkpointing": _checkpointed, "hooks": _hooked, "LoRA": _adapted,
    "torchao": _quantised,
}  # fmt: skip

ORDERS = "wrapped", "swapped"
PAIRWISE = [  # each wrapper in both orders, the models in turn
    ([*MODELS][(2 * column + number) % len(MODELS)], wrapper, first)
    for column, wrapper in enumerate(WRAPPERS)
    for number, first in enumerate(ORDERS) if wrapper != "torchao"
]  # fmt: skip
PAIRWISE += [(model, "torchao", first) for model in MODELS for first in ORDERS]


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fused forwards run with their ops' plain versions: interpreted they take minutes."""
    monkeypatch.setattr(backend.interpreted, "depth", 0)


@pytest.fixture(autouse=True)
def without_shape_checks() -> Iterator[None]:
    """PyTorch cannot trace the checks that tests add to the trainer's functions.

    What is left of them breaks the graph at context managers; without them there is one graph.
    """
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def _inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    mask = torch.ones(1, N, N)
    mask[..., -1], mask[:, -1] = 0, 0
    return torch.randn(1, N, N, C, generator=generator), mask


def _results(call: Callable[..., Tensor], parameters: list[nn.Parameter]) -> list[Tensor]:
    z, mask = _inputs()
    out = call(z.requires_grad_(), mask)
    out.square().sum().backward()
    grads = [p.grad for p in parameters if p.grad is not None]
    full = [g.full_tensor() if hasattr(g, "full_tensor") else g for g in grads]
    assert z.grad is not None
    return [out.detach(), z.grad, torch.stack([g.norm() for g in full]).sort().values]


@pytest.mark.filterwarnings("ignore:.*invalid escape sequence")  # torchao's own
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")
# torch.compile hides this one of its own by `showwarning`, which what is an error never reaches
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize(("model", "wrapper", "first"), PAIRWISE)
def test_a_model_computes_the_same_swapped_before_or_after_it_is_wrapped(
    model: str, wrapper: str, first: str
) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    plain = MODELS[model]()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    swapped, wrap = copy.deepcopy(plain), WRAPPERS[wrapper]
    plain_call = wrap(plain)
    expected = _results(plain_call, [*plain.parameters()])
    report = SwapReport()
    if first == "swapped":
        to_fused(swapped, report)
        assert report.swapped
    call = wrap(swapped)
    if first == "wrapped" or wrapper in ("LoRA", "hooks"):  # swapping again looks again
        to_fused(swapped, report)
    if wrapper == "torchao":
        reasons = {reason.split(" is a ")[-1] for reason in report.kept.values()}
        is_kept = first == "wrapped" and model != "plain torch"  # drop-ins read no linear layer
        assert reasons == ({"Int8Tensor, which kernels cannot read"} if is_kept else set())
    if wrapper == "export":
        call = wrap(swapped)
    with plain_versions():
        results = _results(call, [*swapped.parameters()])
    for ours, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    assert not any(isinstance(m, Fused) for m in to_torch(swapped).modules())


@pytest.mark.filterwarnings("ignore:.*invalid escape sequence")  # torchao's own
def test_a_kernel_reads_no_weight_that_was_quantised_after_the_swap() -> None:
    torch.manual_seed(0)
    plain = _boltz()
    swapped = to_fused(copy.deepcopy(plain))
    for name in ("tri_att_end.mha.linear_o", "tri_mul_in.p_out", "transition_z.fc3"):
        for model in (plain, swapped):
            _quantised(model.block.get_submodule(name))  # alone in its op
    with torch.no_grad(), backend.interpreted():
        found, wanted = swapped(*_inputs()), plain(*_inputs())
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_every_form_has_inputs_to_be_tried_with() -> None:
    """One without them is taken at its names alone, but for those that run their own forward."""
    assert {form.run for form in FORMS if form.inputs is None} == {None, pad_atoms}
