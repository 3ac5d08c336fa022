"""Whether a module is exactly of a form that a fused forward knows, and what is not known of it.

A rule that took a module by some of its names would silently change what it computes, or break
it. So whatever is not known of a module keeps it as it is, and the report says what that was.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused, tried

# These pick another implementation of the same maths, or how much of it is done at once.
IGNORED = re.compile(
    r"chunk_\w+|ckpt_chunk_size|transition_ckpt_chunk_size|use_\w+|inplace_safe|"
    r"triangle_attention|triangle_multiplicative|_\w+"
)
WEIGHTLESS = frozenset({"sigmoid", "relu", "silu", "swish", "softmax_w", "softmax"})


def has(module: Any, *names: str) -> bool:
    """Whether the module has all of these, none of them None."""
    return all(getattr(module, name, None) is not None for name in names)


def plain_class(module: nn.Module) -> type[nn.Module]:
    """The class of the module, before a swap if it was swapped."""
    return module.torch_class if isinstance(module, Fused) else type(module)


def children(module: nn.Module) -> set[str]:
    """Names of the modules inside, without those that have no weights of their own."""
    return {name for name, _ in module.named_children()} - WEIGHTLESS


def children_trouble(module: nn.Module, *known: Collection[str]) -> str | None:
    """What is unknown of the module's parts, each of `known` being a complete set; or None."""
    names = children(module)
    if any(names == set(each) for each in known):
        own = [name for name, _ in module.named_parameters(recurse=False)]
        return f"has parameters of its own ({', '.join(own)})" if own else None
    closest = min(known, key=lambda each: len(names ^ set(each)))
    extra, missing = sorted(names - set(closest)), sorted(set(closest) - names)
    said = [f"has {', '.join(extra)}"] if extra else []
    said += [f"has no {', '.join(missing)}"] if missing else []
    return f"{' and '.join(said)}: a form that no fused op knows"


def signature_trouble(module: nn.Module, *known: str) -> str | None:
    """What is unknown of the arguments of the module's forward, or None.

    Args:
        module: the module.
        known: its first arguments in order, alternatives joined by "|"; what follows may only
            say how it is computed.
    """
    parameters = list(inspect.signature(plain_class(module).forward).parameters.values())[1:]
    named = [p for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]
    first = [p.name for p in named[: len(known)]]
    matches = len(first) == len(known) and all(
        name in each.split("|") for name, each in zip(first, known, strict=True)
    )
    others = [p.name for p in named[len(known) :] if not IGNORED.fullmatch(p.name)]
    if matches and not others:
        return None
    taken = ", ".join(p.name for p in parameters)
    return f"its forward takes ({taken}), which no fused forward knows"


def turns_bias(module: Any) -> bool:
    """Whether a triangle attention can be told to transpose its bias (OpenFold3 since 0.5)."""
    kind: Any = plain_class(module)
    return bool(_takes_turned_bias(kind))


def _takes_turned_bias(kind: Any) -> bool:
    return _takes("transpose_bias", kind)


# torch.compile would trace past the cache, and warn of it. This is all that
# torch.compiler.assume_constant_result does but import the compiler, which takes seconds.
_takes_turned_bias._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _takes(argument: str, kind: Any) -> bool:
    return argument in inspect.signature(kind.forward).parameters


def passes_turned_bias(block: nn.Module, *inputs: Tensor) -> bool | None:
    """Whether a block has its `tri_att_end` transpose its bias; None where it cannot be run.

    The block's own forward is run once, with zeros on the CPU in place of its weights, and its
    call of the ending node is looked at. Neither the block nor the random generator changes.

    Args:
        block: as it is.
        inputs: of its forward, by position, on the CPU.
    """
    end: Any = block.tri_att_end
    signature, said = inspect.signature(plain_class(end).forward), []

    def look(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        call = signature.bind(end, *args, **named)
        call.apply_defaults()
        said.append(call.arguments["transpose_bias"])

    result = tried(block, lambda name, shape: torch.zeros(shape), *inputs, look=(end, look))
    return None if result is None else said == [True]


def linear_trouble(
    layers: Iterable[tuple[str, Any, int | None, int | None, bool | None]],
) -> str | None:
    """What is unknown of linear layers, or None.

    Args:
        layers: name, layer, output and input width (None: any), and whether it has a bias
            (None: either).
    """
    for name, layer, outputs, inputs, bias in layers:
        weight = getattr(layer, "weight", None)
        if not isinstance(weight, Tensor) or weight.dim() != 2:
            return f"{name} is no linear layer"
        shape = list(weight.shape)
        if any(want not in (None, got) for want, got in zip((outputs, inputs), shape, strict=True)):
            return f"{name}'s weight is {shape}, not [{outputs}, {inputs}]"
        present = getattr(layer, "bias", None) is not None
        if bias is not None and present != bias:
            return f"{name} has {'a' if present else 'no'} bias"
    return None


def norm_trouble(norms: Iterable[tuple[str, Any, int]]) -> str | None:
    """What is unknown of layer norms with a weight and a bias of that many channels, or None."""
    for name, norm, channels in norms:
        parts = [getattr(norm, part, None) for part in ("weight", "bias")]
        if any(not isinstance(part, Tensor) or part.shape != (channels,) for part in parts):
            return f"{name} has no weight or bias of {channels} channels"
        if not isinstance(getattr(norm, "eps", None), float):
            return f"{name} has no eps"
    return None
