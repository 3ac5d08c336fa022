"""What a fused forward is declared for: forms of modules, and how a module is recognised.

A rule that took a module by some of its names would silently change what it computes, or break
it. So whatever is not known of a module keeps it as it is, and the report says what that was.
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

# These pick another implementation of the same maths, or how much of it is done at once.
IGNORED = re.compile(
    r"chunk_\w+|ckpt_chunk_size|transition_ckpt_chunk_size|use_\w+|inplace_safe|"
    r"triangle_attention|triangle_multiplicative|_\w+"
)
WEIGHTLESS = frozenset({"sigmoid", "relu", "silu", "swish", "softmax_w", "softmax"})
GLOBAL = "amstz"
"""Channels that a block and its parts name alike: tokens, MSA, single, templates, pairs."""

Run = Callable[..., Any]


class Linear(NamedTuple):
    """A linear layer.

    Attributes:
        outputs, inputs: products of numbers and letters, "2e", each letter one size in a form.
        bias: whether it has one; None for either.
    """

    outputs: str
    inputs: str
    bias: bool | None = False


class Norm(NamedTuple):
    """A layer norm with an eps.

    Attributes:
        channels: a letter.
        weight, bias: whether it has them; None for either.
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
        run: the fused forward, of the module and its arguments by name; None where it does not
            take them. Without it the module's own forward calls its fused parts.
        parts: what each module inside is, by its path: a layer, a norm, a module whose form has
            this fused forward, one of a class, or one without weights (None).
        arguments: of its forward: alternatives joined by "|", those that may be missing end in
            "?"; what follows may only say how it is computed.
        inputs: what it is tried with, by position: axes, N residues, S sequences, letters of
            channels; without channels a mask, and None where it is empty. Without inputs it is
            not tried.
        heads: path of their number, the letter h.
        flags: attributes that it must have, with their types or values.
        options: what `run` is called with besides.
        widths: paths of layers whose inputs are so many channels, by letter.
        untried: what speaks against a module whose forward cannot be run.
        recordable: whether its calls are recorded as CUDA graphs where it is outside of a block.
            What atoms have too is not: every crop has another number of them.
        denoises: whether it is a whole step of sampling, recorded while the model is in evaluation
            mode; its own forward calls what is fused inside.
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
        return _declared, (FORMS.index(self),)  # it stays one object wherever it is sent

    @functools.cached_property
    def inside(self) -> dict[str, set[str]]:
        """Names of the modules inside the module itself ("") and inside its parts."""
        found: dict[str, set[str]] = {"": set()}
        for path in self.parts:
            above = ""
            for name in path.split("."):
                found.setdefault(above, set()).add(name)
                above = f"{above}.{name}" if above else name
        return found

    @functools.cached_property
    def is_block(self) -> bool:
        """Whether at least two of its parts have fused forwards of their own."""
        return (
            sum(callable(part) and not isinstance(part, type) for part in self.parts.values()) > 1
        )

    @functools.cached_property
    def _names(self) -> list[str]:
        return [names.rstrip("?").split("|")[0] for names in self.arguments]

    @functools.cached_property
    def _first(self) -> dict[str, str]:
        """The first name of an argument that has several, by each."""
        return {
            name: names.split("|")[0]
            for names in self.arguments if "|" in names for name in names.split("|")
        }  # fmt: skip

    def named(self, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name; `late` are those by position beyond the known ones."""
        found = dict(zip(self._names, args, strict=False))
        for name, value in options.items():
            found[self._first.get(name, name)] = value
        found["late"] = args[len(self._names) :]
        return found

    def of(self, module: Any) -> list[Any]:
        """The parts of a module of this form."""
        return [part_at(module, path) for path in self.parts]

    def trouble(self, module: nn.Module) -> str | None:
        """What is unknown of a module, or None."""
        for path, names in self.inside.items():
            inner = part_at(module, path)
            if missing := names - {name for name, _ in _present(inner)}:
                return f"{path or 'it'} has no {', '.join(sorted(missing))}"
            if extra := {name for name, _ in _present(inner)} - WEIGHTLESS - names:
                return f"has {_joined(path, extra)}: a form that no fused op knows"
            if own := {name for name, _ in inner.named_parameters(recurse=False)}:
                return f"has parameters of its own ({_joined(path, own)})"
        for path, want in self.flags.items():
            value = _or_none(module, path)
            known = isinstance(value, want) if isinstance(want, type | UnionType) else value == want
            if not known:
                return f"its {path} is {value!r}, which no fused op knows"
        trouble = self._argument_trouble(module)
        if trouble:
            return trouble
        sizes = self.sizes(module)
        return sizes if isinstance(sizes, str) else None

    def _argument_trouble(self, module: nn.Module) -> str | None:
        parameters = list(inspect.signature(plain_class(module).forward).parameters.values())[1:]
        left = [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]
        for names in self.arguments:
            if left and left[0] in names.rstrip("?").split("|"):
                left.pop(0)
            elif not names.endswith("?"):
                left = ["?"]
        if all(map(IGNORED.fullmatch, left)):
            return None
        taken = ", ".join(p.name for p in parameters)
        return f"its forward takes ({taken}), which no fused forward knows"

    def sizes(self, module: nn.Module) -> dict[str, int] | str:
        """What the letters of the parts are, or what is unknown of the parts."""
        sizes: dict[str, int] = {}
        if self.heads:
            heads = _or_none(module, self.heads)
            if not isinstance(heads, int) or heads < 1:
                return "has no number of heads"
            sizes["h"] = heads
        for letter, path in self.widths.items():
            sizes[letter] = part_at(module, path).weight.shape[-1]
        for path, part in self.parts.items():
            trouble = _part_trouble(path, part_at(module, path), part, sizes)
            if trouble:
                return trouble
        return sizes


FORMS: list[Form] = []
"""All that are declared."""


def _declared(number: int) -> Form:
    return FORMS[number]


def form_of(module: nn.Module) -> Form | None:
    """The form of a module, swapped already or not."""
    if isinstance(module, Fused):
        return module.form  # type: ignore[no-any-return]
    return next((form for form in candidates(module) if form.trouble(module) is None), None)


def candidates(module: nn.Module) -> list[Form]:
    """Forms all of whose parts a module has: those with most."""
    if isinstance(module, torch.jit.ScriptModule):
        return []
    names = {name for name, _ in _present(module)}
    fitting = [form for form in FORMS if form.inside[""] <= names]
    most = max((len(form.inside[""]) for form in fitting), default=0)
    return [form for form in fitting if len(form.inside[""]) == most]


def parts_of(module: nn.Module) -> list[Any]:
    """The parts of a module of some form, in the order that the form declares."""
    form = form_of(module)
    assert form is not None
    return form.of(module)


def part_at(module: Any, path: str) -> Any:
    """An attribute by its path; the module itself for none."""
    for name in path.split(".") if path else ():
        module = getattr(module, name)
    return module


def plain_class(module: nn.Module) -> type[nn.Module]:
    """The class of the module, before a swap if it was swapped."""
    return module.torch_class if isinstance(module, Fused) else type(module)


def turns_bias(module: Any) -> bool:
    """Whether a triangle attention can be told to transpose its bias (OpenFold3 since 0.5)."""
    kind: Any = plain_class(module)
    return bool(_takes_turned_bias(kind))


@constant_when_compiled  # torch.compile would trace past the cache, and warn of it
def _takes_turned_bias(kind: Any) -> bool:
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


def _part_trouble(path: str, inner: Any, part: Part, sizes: dict[str, int]) -> str | None:
    """What is unknown of one part, or None; fills `sizes`."""
    if isinstance(part, Linear):
        return _linear_trouble(path, inner, part, sizes)
    if isinstance(part, Norm):
        return _norm_trouble(path, inner, part, sizes)
    if isinstance(part, Dropout):
        shared = getattr(inner, "batch_dim", getattr(inner, "shared_dim", part.axis))
        if isinstance(getattr(inner, "r", None), float | int) and shared in (
            part.axis, [part.axis]
        ):  # fmt: skip
            return None
        return f"{path} drops out in a way that no fused op knows"
    if part is None:
        return f"{path} has weights that no fused op knows" if [*inner.parameters()] else None
    if isinstance(part, type):
        return None if isinstance(inner, part) else f"{path} is a {type(inner).__name__}"
    form = form_of(inner)
    if form is None or form.run is not part:
        reasons = [each.trouble(inner) for each in candidates(inner) if each.run is part]
        reason = next((each for each in reasons if each), "of a form that no fused op knows")
        return f"{path} is not known: {reason}"
    found = form.sizes(inner)
    assert not isinstance(found, str)
    for letter in found.keys() & set(GLOBAL):
        if sizes.setdefault(letter, found[letter]) != found[letter]:
            return f"{path} has {found[letter]} channels, not {sizes[letter]}"
    return None


def _linear_trouble(path: str, layer: Any, part: Linear, sizes: dict[str, int]) -> str | None:
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return f"{path} is not a linear layer"
    products = (part.outputs, part.inputs)
    if not all(map(_settled, (sizes, sizes), products, weight.shape)):
        wanted = ", ".join(str(_product(sizes, product)) for product in products)
        return f"{path}'s weight is {list(weight.shape)}, not [{wanted}]"
    present = getattr(layer, "bias", None) is not None
    if part.bias is not None and present != part.bias:
        return f"{path} has {'a' if present else 'no'} bias"
    return None


def _norm_trouble(path: str, norm: Any, part: Norm, sizes: dict[str, int]) -> str | None:
    for name, wanted in (("weight", part.weight), ("bias", part.bias)):
        found = getattr(norm, name, None)
        if wanted is not None and wanted != (found is not None):
            return f"{path} has {'no' if wanted else 'a'} {name}"
        if found is not None and not (
            isinstance(found, Tensor) and found.dim() == 1
            and _settled(sizes, part.channels, found.shape[0])
        ):  # fmt: skip
            return f"{path} has no {name} of {sizes.get(part.channels)} channels"
    return None if isinstance(getattr(norm, "eps", None), float) else f"{path} has no eps"


def _product(sizes: dict[str, int], product: str) -> int:
    """A product, of letters that are known."""
    return math.prod(int(x) if x.isdigit() else sizes.get(x, 1) for x in product)


def _settled(sizes: dict[str, int], product: str, size: int) -> bool:
    """Whether a size is this product; its letter that was not known yet becomes what is left."""
    known, new = _product(sizes, product), [x for x in product if x.isalpha() and x not in sizes]
    if new and size % known == 0:
        sizes[new[0]] = size // known
        return True
    return known == size and not new
