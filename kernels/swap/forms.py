"""Forms of modules that have a fused forward, and how a module is recognised.

Recognising a module by only some of its names could silently change its results, or break it. So
a module with anything unknown is not swapped, and the report gives the reason.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused
from evofeed.kernels.runtime.private_apis import constant_when_compiled

# These select another implementation of the same maths, or its chunk size.
IGNORED = re.compile(
    r"chunk_\w+|ckpt_chunk_size|transition_ckpt_chunk_size|use_\w+|inplace_safe|"
    r"triangle_attention|triangle_multiplicative|_\w+"
)
WEIGHTLESS = frozenset({"sigmoid", "relu", "silu", "swish", "softmax_w", "softmax"})
GLOBAL = "amstz"
"""Letters with one size in a block and its parts: tokens, MSA, single, templates, pairs."""

Run = Callable[..., Any]


class Linear(NamedTuple):
    """A linear layer.

    Attributes:
        outputs, inputs: products of numbers and letters, "2e", each letter one size in a form.
        bias: True if it has one; None for either.
    """

    outputs: str
    inputs: str
    bias: bool | None = False


class Norm(NamedTuple):
    """A layer norm with an eps.

    Attributes:
        channels: a letter.
        weight, bias: True if it has them; None for either.
    """

    channels: str
    weight: bool = True
    bias: bool | None = True


class Dropout(NamedTuple):
    """Dropout whose mask is shared along one axis."""

    axis: int


Part = Linear | Norm | Dropout | Run | type[nn.Module] | None


@dataclass(frozen=True, eq=False)
class Form:
    """A form of module that has a fused forward.

    Attributes:
        run: the fused forward, called with the module and its arguments by name; it returns None
            for unsupported arguments. Without `run` the module's own forward calls its fused parts.
        parts: the kind of each submodule, by path: a layer, a norm, a module whose form has this
            fused forward, an instance of a class, or a module without weights (None).
        arguments: names of the forward's arguments: alternatives joined by "|", optional ones with
            "?". Further arguments may only select an implementation.
        inputs: inputs of the trial, by position: axes, N residues, S sequences, letters of
            channels; without channels a mask, None if empty. Forms without inputs are not tried.
        heads: path of the number of heads, the letter h.
        flags: required attributes, with their types or values.
        options: further arguments of `run`.
        widths: paths of layers with so many input channels, by letter.
        untried: returns the reason to keep a module whose forward cannot be run.
        recordable: record its calls as CUDA graphs if it is not inside a block. False for modules
            that atoms have too: the number of atoms differs between crops.
        denoises: True for a complete denoising step, recorded while the model is in evaluation
            mode; its own forward calls its fused parts.
    """

    run: Run | None
    parts: Mapping[str, Part]
    arguments: tuple[str, ...]
    inputs: tuple[str, ...] | None = None
    heads: str = ""
    flags: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    widths: Mapping[str, str] = field(default_factory=dict)
    untried: Callable[[Any], str | None] = lambda module: None
    recordable: bool = True
    denoises: bool = False

    def __post_init__(self) -> None:
        FORMS.append(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _declared, (FORMS.index(self),)  # copies are the same object

    @functools.cached_property
    def children(self) -> dict[str, set[str]]:
        """Names of the submodules of the module itself ("") and of its parts, by path."""
        names_by_path: dict[str, set[str]] = {"": set()}
        for path in self.parts:
            parent = ""
            for name in path.split("."):
                names_by_path.setdefault(parent, set()).add(name)
                parent = f"{parent}.{name}" if parent else name
        return names_by_path

    @functools.cached_property
    def is_block(self) -> bool:
        """True if at least two of its parts have fused forwards."""
        return (
            sum(callable(part) and not isinstance(part, type) for part in self.parts.values()) > 1
        )

    @functools.cached_property
    def _names(self) -> list[str]:
        return [names.rstrip("?").split("|")[0] for names in self.arguments]

    @functools.cached_property
    def _first(self) -> dict[str, str]:
        """The first of an argument's alternative names, by each name."""
        return {
            name: names.split("|")[0]
            for names in self.arguments if "|" in names for name in names.split("|")
        }  # fmt: skip

    def named(self, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name; `extra_args` are further positional ones."""
        named = dict(zip(self._names, args, strict=False))
        for name, value in options.items():
            named[self._first.get(name, name)] = value
        named["extra_args"] = args[len(self._names) :]
        return named

    def mismatch(self, module: nn.Module) -> str | None:
        """The reason why a module is not of this form, or None."""
        for path, names in self.children.items():
            inner = part_at(module, path)
            if missing := names - {name for name, _ in _present(inner)}:
                return f"{path or 'it'} has no {', '.join(sorted(missing))}"
            if extra := {name for name, _ in _present(inner)} - WEIGHTLESS - names:
                return f"has {_joined(path, extra)}: a form that no fused op supports"
            if parameters := {name for name, _ in inner.named_parameters(recurse=False)}:
                return f"has direct parameters ({_joined(path, parameters)})"
        for path, expected in self.flags.items():
            value = _or_none(module, path)
            is_type = isinstance(expected, type | UnionType)
            if not (isinstance(value, expected) if is_type else value == expected):
                return f"its {path} is {value!r}, which no fused op supports"
        if mismatch := self._argument_mismatch(module):
            return mismatch
        sizes = self.sizes(module)
        return sizes if isinstance(sizes, str) else None

    def _argument_mismatch(self, module: nn.Module) -> str | None:
        parameters = list(inspect.signature(plain_class(module).forward).parameters.values())[1:]
        unmatched = [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]
        for names in self.arguments:
            if unmatched and unmatched[0] in names.rstrip("?").split("|"):
                unmatched.pop(0)
            elif not names.endswith("?"):
                unmatched = ["?"]
        if all(map(IGNORED.fullmatch, unmatched)):
            return None
        arguments = ", ".join(p.name for p in parameters)
        return f"its forward takes ({arguments}), which no fused forward supports"

    def sizes(self, module: nn.Module) -> dict[str, int] | str:
        """The size of each letter in the parts, or the reason why a part does not match."""
        sizes: dict[str, int] = {}
        if self.heads:
            heads = _or_none(module, self.heads)
            if not isinstance(heads, int) or heads < 1:
                return "has no number of heads"
            sizes["h"] = heads
        for letter, path in self.widths.items():
            sizes[letter] = part_at(module, path).weight.shape[-1]
        for path, part in self.parts.items():
            if mismatch := _part_mismatch(path, part_at(module, path), part, sizes):
                return mismatch
        return sizes


FORMS: list[Form] = []
"""All declared forms."""


def _declared(number: int) -> Form:
    return FORMS[number]


def form_of(module: nn.Module) -> Form | None:
    """The form of a module, already swapped or not."""
    if isinstance(module, Fused):
        return module.form  # type: ignore[no-any-return]
    return next((form for form in candidates(module) if form.mismatch(module) is None), None)


def candidates(module: nn.Module) -> list[Form]:
    """Forms whose parts the module has, of those the ones with the most parts."""
    if isinstance(module, torch.jit.ScriptModule):
        return []
    names = {name for name, _ in _present(module)}
    fitting = [form for form in FORMS if form.children[""] <= names]
    max_parts = max((len(form.children[""]) for form in fitting), default=0)
    return [form for form in fitting if len(form.children[""]) == max_parts]


def parts_of(module: nn.Module) -> list[Any]:
    """The parts of a module, in the order of its form."""
    form = form_of(module)
    assert form is not None
    return [part_at(module, path) for path in form.parts]


def part_at(module: Any, path: str) -> Any:
    """An attribute by its path; the module itself for an empty path."""
    for name in path.split(".") if path else ():
        module = getattr(module, name)
    return module


def plain_class(module: nn.Module) -> type[nn.Module]:
    """The class of the module before a swap."""
    return module.torch_class if isinstance(module, Fused) else type(module)


def transposes_bias(module: Any) -> bool:
    """True if a triangle attention can transpose its bias (OpenFold3 since 0.5)."""
    kind: Any = plain_class(module)
    return bool(_takes_transpose_bias(kind))


@constant_when_compiled  # torch.compile would ignore the cache, and warn
def _takes_transpose_bias(kind: Any) -> bool:
    return _takes("transpose_bias", kind)


@functools.cache
def _takes(argument: str, kind: Any) -> bool:
    return argument in inspect.signature(kind.forward).parameters


def _present(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, inner) for name, inner in module._modules.items() if inner is not None]


def _joined(path: str, names: set[str]) -> str:
    return ", ".join(f"{path}.{name}" if path else name for name in sorted(names))


def _or_none(module: Any, path: str) -> Any:
    try:
        return part_at(module, path)
    except AttributeError:
        return None


def _part_mismatch(path: str, inner: Any, part: Part, sizes: dict[str, int]) -> str | None:
    """The reason why one part does not match, or None; fills `sizes`."""
    if isinstance(part, Linear):
        return _linear_mismatch(path, inner, part, sizes)
    if isinstance(part, Norm):
        return _norm_mismatch(path, inner, part, sizes)
    if isinstance(part, Dropout):
        shared = getattr(inner, "batch_dim", getattr(inner, "shared_dim", part.axis))
        if isinstance(getattr(inner, "r", None), float | int) and shared in (
            part.axis, [part.axis]
        ):  # fmt: skip
            return None
        return f"{path} has dropout that no fused op supports"
    if part is None:
        return f"{path} has weights that no fused op supports" if [*inner.parameters()] else None
    if isinstance(part, type):
        return None if isinstance(inner, part) else f"{path} is a {type(inner).__name__}"
    form = form_of(inner)
    if form is None or form.run is not part:
        reasons = [other.mismatch(inner) for other in candidates(inner) if other.run is part]
        reason = next(filter(None, reasons), "of a form that no fused op supports")
        return f"{path} is unknown: {reason}"
    inner_sizes = form.sizes(inner)
    assert not isinstance(inner_sizes, str)
    for letter in inner_sizes.keys() & set(GLOBAL):
        if sizes.setdefault(letter, inner_sizes[letter]) != inner_sizes[letter]:
            return f"{path} has {inner_sizes[letter]} channels, not {sizes[letter]}"
    return None


def _linear_mismatch(path: str, layer: Any, part: Linear, sizes: dict[str, int]) -> str | None:
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return f"{path} is not a linear layer"
    products = (part.outputs, part.inputs)
    if not all(map(_settles, (sizes, sizes), products, weight.shape)):
        expected = ", ".join(str(_evaluate(sizes, product)) for product in products)
        return f"{path}'s weight is {list(weight.shape)}, not [{expected}]"
    present = getattr(layer, "bias", None) is not None
    if part.bias is not None and present != part.bias:
        return f"{path} has {'a' if present else 'no'} bias"
    return None


def _norm_mismatch(path: str, norm: Any, part: Norm, sizes: dict[str, int]) -> str | None:
    for name, expected in (("weight", part.weight), ("bias", part.bias)):
        value = getattr(norm, name, None)
        if expected is not None and expected != (value is not None):
            return f"{path} has {'no' if expected else 'a'} {name}"
        if value is not None and not (
            isinstance(value, Tensor) and value.dim() == 1
            and _settles(sizes, part.channels, value.shape[0])
        ):  # fmt: skip
            return f"{path} has no {name} of {sizes.get(part.channels)} channels"
    return None if isinstance(getattr(norm, "eps", None), float) else f"{path} has no eps"


def _evaluate(sizes: dict[str, int], product: str) -> int:
    """Value of a product; unknown letters count as 1."""
    return math.prod(int(x) if x.isdigit() else sizes.get(x, 1) for x in product)


def _settles(sizes: dict[str, int], product: str, size: int) -> bool:
    """True if the size is this product; sets a letter that has no size yet."""
    factor, new = _evaluate(sizes, product), [x for x in product if x.isalpha() and x not in sizes]
    if new and size % factor == 0:
        sizes[new[0]] = size // factor
        return True
    return factor == size and not new
