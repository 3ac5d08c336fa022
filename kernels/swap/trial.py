"""Whether a module computes what its fused form does, tried on small random numbers on the CPU.

A form is known by names, shapes and arguments. What a forward does with them is seen only where
it runs: a sub-class may override it, a layer inside may be more than linear. Results and gradients
are compared, in evaluation and in training mode, with the same state of the random generator. A
forward that cannot be run here, as it wants a GPU or its own compiled code, is taken at its names.

Letters: N residues, S sequences, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused, called, fuse, stand_ins
from evofeed.kernels.runtime.backend import plain_versions
from evofeed.kernels.runtime.private_apis import is_of_several
from evofeed.kernels.swap import (
    af3_attention,
    af3_averages,
    af3_blocks,
    af3_conditioned,
    af3_diffusion,
    af3_modules,
    blocks,
    modules,
    pair_stacks,
    templates,
)
from evofeed.kernels.swap.forms import plain_class

N, S = 3, 2
NEAR = 2e-3
"""Relative error that rounding may make of float32, in a block of a dozen layers."""

Inputs = tuple[Tensor | None, ...]


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _mask(*shape: int) -> Tensor:
    """Ones, but for the last column: no row is without a valid key."""
    mask = torch.ones(shape)
    mask[..., -1] = 0.0
    mask[..., -1, :] = 1.0 if len(shape) > 2 else mask[..., -1, :]
    return mask


def _pairs(C: int) -> Inputs:
    return _random(1, N, N, C), _mask(1, N, N)


def _into(layer: Any) -> int:
    return int(layer.weight.shape[-1])


def _pair_width(block: Any) -> int:
    product = block.tri_mul_out
    return _into(product.g_out if hasattr(product, "g_out") else product.linear_g)


def _msa_attention(module: Any) -> Inputs:
    m, mask = _random(1, S, N, _into(module.mha.linear_q)), _mask(1, S, N)
    pairs = hasattr(module, "linear_z") and module.linear_z is not None
    return m, _random(1, N, N, _into(module.linear_z)) if pairs else None, mask


def _average(module: Any) -> Inputs:
    names = af3_averages.names_of(module)
    m, z = (_random(1, *size, _into(getattr(module, names[place])))
            for place, size in ((2, (S, N)), (4, (N, N))))  # fmt: skip
    return (m, z) if names is af3_averages.AVERAGES[2] else (m, z, _mask(1, N, N))


def _boltz_attention(module: Any) -> Inputs:
    s, inner = _random(1, N, _into(module.proj_q)), list(module.proj_z.children())
    return s, _random(1, N, N, _into(inner[1]) if inner else module.num_heads), _mask(1, N), s


def _token_attention(module: Any) -> tuple[Tensor, Tensor | None, Tensor]:
    """a, s and z."""
    parts = af3_attention.parts_of(module)
    a, z = _random(1, N, _into(parts.mha.linear_q)), _random(1, N, N, _into(parts.pair))
    return a, None if parts.last is None else _random(1, N, _into(parts.last)), z


def _openfold3_attention(module: Any) -> Inputs:
    a, s, z = _token_attention(module)
    return a, z, s, _mask(1, N)


def _conditioned(module: Any) -> Inputs:
    C, K = af3_conditioned.adaptive_weights(module).gate.shape
    return _random(1, N, C), _random(1, N, K)


def _conditioned_transition(module: Any) -> Inputs:
    masked = hasattr(module, "swiglu")
    inputs = _conditioned(af3_conditioned.norm_of(module))
    return (*inputs, _mask(1, N)) if masked else inputs


def _boltz_diffusion_layer(layer: Any) -> Inputs:
    a, s = _conditioned(layer.adaln)
    return a, s, _random(1, N, N, layer.pair_bias_attn.num_heads), _mask(1, N)


def _boltz_pairformer(block: Any) -> Inputs:
    z, pair_mask = _pairs(_pair_width(block))
    return _random(1, N, _into(block.attention.proj_q)), z, _mask(1, N), pair_mask


def _protenix_block(block: Any) -> Inputs:
    s = _random(1, N, block.c_s) if block.c_s > 0 else None
    return (s, *_pairs(_pair_width(block)))


def _evoformer(block: Any) -> Inputs:
    m, z, mask = _msa_attention(block.msa_att_row)
    return m, z, mask, _mask(1, N, N)


INPUTS: dict[type[Fused], Callable[[Any], Inputs]] = {
    modules.FusedTriangleAttention: lambda m: _pairs(_into(m.mha.linear_q)),
    modules.FusedMSAAttention: _msa_attention,
    modules.FusedGlobalColumnAttention: lambda m: (
        _random(1, S, N, _into(m.global_attention.linear_q)), _mask(1, S, N)
    ),
    modules.FusedTriangleMultiplication: lambda m: _pairs(_into(m.linear_g)),
    modules.FusedTransition: lambda m: _pairs(_into(m.linear_1)),
    modules.FusedOuterProductMean: lambda m: (_random(1, S, N, _into(m.linear_1)), _mask(1, S, N)),
    af3_modules.FusedPackedOutgoing: lambda m: _pairs(_into(m.p_in)),
    af3_modules.FusedPackedIncoming: lambda m: _pairs(_into(m.p_in)),
    af3_modules.FusedSwigluTransition: lambda m: _pairs(_into(af3_modules.swiglu_parts(m)[1]))[
        : 2 if hasattr(m, "swiglu") else 1
    ],
    af3_modules.FusedBoltzOuterProductMean: lambda m: (
        _random(1, S, N, _into(m.proj_a)), _mask(1, S, N)
    ),
    af3_averages.FusedPairWeightedAveraging: _average,
    af3_attention.FusedBoltzPairBiasAttention: _boltz_attention,
    af3_attention.FusedPairBiasAttention: _openfold3_attention,
    af3_attention.FusedSingleAttention: lambda m: (*_token_attention(m)[::2], _mask(1, N)),
    af3_attention.FusedProtenixPairBiasAttention: _token_attention,
    af3_conditioned.FusedAdaptiveNorm: _conditioned,
    af3_conditioned.FusedConditionedTransition: _conditioned_transition,
    af3_diffusion.FusedDiffusionBlock: lambda b: (
        *_token_attention(b.attention_pair_bias), _mask(1, N)
    ),
    af3_diffusion.FusedProtenixDiffusionBlock: lambda b: _token_attention(b.attention_pair_bias),
    af3_diffusion.FusedBoltzDiffusionLayer: _boltz_diffusion_layer,
    af3_blocks.FusedBoltzPairBlock: lambda b: _pairs(_pair_width(b)),
    af3_blocks.FusedBoltzPairformerBlock: _boltz_pairformer,
    af3_blocks.FusedBoltz1PairformerBlock: _boltz_pairformer,
    af3_blocks.FusedPairBlock: lambda b: _pairs(_pair_width(b)),
    af3_blocks.FusedProtenixBlock: _protenix_block,
    pair_stacks.FusedPairStack: lambda b: _pairs(_pair_width(b)),
    pair_stacks.FusedTemplateBlock: lambda b: _pairs(_pair_width(b)),
    blocks.FusedEvoformerBlock: _evoformer,
    templates.FusedTemplateAttention: lambda m: (
        _random(1, S, N, N, _into(m.mha.linear_k)), _random(1, N, N, _into(m.mha.linear_q)),
        _mask(1, S),
    ),
}  # fmt: skip
"""What the forward of a form is tried with, by position."""

_known: dict[Hashable, str | None] = {}


def trouble(module: nn.Module, mixin: type[Fused]) -> str | None:
    """What speaks against the fused form of a module that has its names and shapes, or None."""
    odd = next((n for n, p in module.named_parameters() if _wraps(p)), None)
    if odd:
        return f"{odd} is a {type(module.get_parameter(odd)).__name__}, which kernels cannot read"
    if mixin not in INPUTS:
        return None  # a drop-in looks itself, a block of fused parts has its own forward
    if "forward" in vars(module):
        return "its forward is patched on this module alone"
    hooked = [name for name, inner in module.named_modules() if name and _has_hooks(inner)]
    if hooked:
        return f"{hooked[0]} has hooks or a patched forward, which a fused forward would not call"
    odd = next((n for n, p in module.named_parameters() if not p.is_floating_point()), None)
    if odd:
        return f"{odd} is of type {str(module.get_parameter(odd).dtype)[6:]}"
    key = (mixin, *_configuration(module))
    if key not in _known:
        _known[key] = _disagreement(module, mixin)
    return _known[key]


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        "forward" in vars(module)
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _wraps(parameter: nn.Parameter) -> bool:
    """Whether its numbers are in other tensors; FSDP's are together when a module is called."""
    kind = type(parameter).__name__
    return kind != "DTensor" and is_of_several(parameter)


def _configuration(module: nn.Module) -> Iterable[Hashable]:
    """Classes, plain attributes and shapes of a module and of all inside it."""
    for name, inner in module.named_modules():
        plain = tuple(
            (key, value) for key, value in vars(inner).items()
            if key != "training" and isinstance(value, bool | int | float | str | None)
        )  # fmt: skip
        shapes = tuple((key, tuple(p.shape)) for key, p in inner.named_parameters(recurse=False))
        yield name, plain_class(inner), plain, shapes


def _disagreement(module: nn.Module, mixin: type[Fused]) -> str | None:
    """What its own forward does that the fused one does not, if that is seen on the CPU."""
    inputs = INPUTS[mixin](module)
    cls = type(module)
    for training in (False, True):
        try:
            object.__setattr__(module, "__class__", plain_class(module))
            theirs, changed = _results(module, inputs, training)
            if theirs is None:
                wrapped = None if training else _wrapped(module)
                if wrapped:
                    return f"{wrapped} is more than one layer, and its forward cannot be tried"
                continue
            fuse(module, mixin, False)
            with plain_versions():
                ours, _ = _results(module, inputs, training)
        finally:
            object.__setattr__(module, "__class__", cls)
        if ours is None or not _alike(ours, theirs):
            what = "does something else in training" if training else "computes something else"
            return f"its forward {what} than the fused one"
        if changed:
            return f"its forward sets {changed[0]}, which the fused one would not"
    return None


def _wrapped(module: nn.Module) -> str | None:
    """A module inside that shows a weight but has modules of its own, as adapters do."""
    for name, inner in module.named_modules():
        if name and isinstance(getattr(inner, "weight", None), Tensor) and [*inner.children()]:
            return str(name)
    return None


def _results(
    module: nn.Module, inputs: Inputs, training: bool
) -> tuple[list[Tensor] | None, list[str]]:
    """What it computes of copies of these, and gradients if it has some; None if it cannot be run.

    Also what it set in itself.
    """
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        weights, parameters = stand_ins(module, _weight), dict(module.named_parameters())
        of_weights = [t.requires_grad_() for name, t in weights.items() if name in parameters]
        given = [None if t is None else t.clone().requires_grad_(_varies(t)) for t in inputs]
        copies = [None if t is None else t.clone() for t in given]
        found, changed = called(module, weights, copies, training)
        several: list[Any] = [*found] if isinstance(found, tuple | list) else [found]
        made = [t.float() for t in several if isinstance(t, Tensor)]
        if not made:
            return None, changed
        leaves = [t for t in (*given, *of_weights) if t is not None and t.requires_grad]
        ends = [t for t in made if t.requires_grad]
        slopes = [torch.linspace(0.5, 1.5, t.numel()).view(t.shape) for t in ends]
        try:
            grads = torch.autograd.grad(ends, leaves, slopes, allow_unused=True) if ends else ()
        except Exception:  # another's code again
            return [t.detach() for t in made], changed
    missing = [None] * (len(leaves) - len(grads))
    return [t.detach() for t in made] + [
        torch.zeros_like(leaf) if g is None else g
        for g, leaf in zip((*grads, *missing), leaves, strict=True)
    ], changed


def _varies(t: Tensor) -> bool:
    """Whether it is no mask."""
    return not bool(((t == 0.0) | (t == 1.0)).all())


def _alike(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    """Whether all of theirs are near ours; a gradient that is only rounding counts as zero."""
    least = 1e-4 * max(float(t.norm()) for t in theirs)
    return len(ours) >= len(theirs) and all(
        a.shape == b.shape and float((a - b).norm()) <= NEAR * max(float(b.norm()), least)
        for a, b in zip(ours, theirs, strict=False)
    )


def _weight(name: str, shape: torch.Size) -> Tensor:
    drawn = torch.Generator().manual_seed(len(name) + sum(shape))
    if len(shape) < 2:
        return torch.randn(shape, generator=drawn) * 0.3 + (0.0 if "bias" in name else 1.0)
    return torch.randn(shape, generator=drawn) / math.sqrt(shape[-1])
