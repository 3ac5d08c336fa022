"""Configurations: frozen dataclasses of plain values, checked as they are made."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import hashlib
import json
import operator
import types
from collections.abc import Collection, Mapping
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

_C = TypeVar("_C", bound=Any)


class Config:
    """What every configuration can."""

    __slots__ = ()

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for YAML or JSON."""
        return dataclasses.asdict(self)  # type: ignore[call-overload,no-any-return]

    @property
    def digest(self) -> str:
        """sha256 of the settings, the same in every process."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()


def check_numbers(
    config: Any, *names: str, least: float | None = None, above: float | None = None,
    most: float | None = None, below: float | None = None,
) -> None:  # fmt: skip
    """Refuse fields that are not within the bounds given; a field that is None passes.

    Raises:
        ValueError: names the first, its value and the bounds.
    """
    bounds = [
        (text, bound, holds)
        for text, bound, holds in (
            ("at least", least, operator.ge), ("above", above, operator.gt),
            ("at most", most, operator.le), ("below", below, operator.lt),
        )
        if bound is not None
    ]  # fmt: skip
    for name in names:
        value = getattr(config, name)
        if value is not None and not all(holds(value, bound) for _, bound, holds in bounds):
            wanted = " and ".join(f"{text} {bound}" for text, bound, _ in bounds)
            raise ValueError(f"{name} is {value}, but must be {wanted}")


def check_choice(config: Any, name: str, known: Collection[str]) -> None:
    """Refuse a field that is none of the values known.

    Raises:
        ValueError: names it, its value and those.
    """
    if (value := getattr(config, name)) not in known:
        raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(known)}")


def replaced(base: _C, changes: Mapping[str, Any], prefix: str = "") -> _C:
    """A configuration with some fields changed; a mapping changes fields of a nested one.

    Args:
        prefix: what comes before a field's name in messages.

    Raises:
        ValueError: there is no such field, or its value is refused; names it.
    """
    hints = get_type_hints(type(base))
    unknown = sorted(set(changes) - set(hints))
    if unknown:
        near = difflib.get_close_matches(unknown[0], hints, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise ValueError(
            f"no setting {prefix}{unknown[0]}; {meant}there are {', '.join(sorted(hints))}"
        )
    values = {
        name: _checked(hints[name], getattr(base, name), value, prefix + name)
        for name, value in changes.items()
    }
    try:
        changed: _C = dataclasses.replace(base, **values)
    except ValueError as error:
        raise ValueError(f"{prefix.rstrip('.')}: {error}" if prefix else str(error)) from error
    return changed


_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a list",
    Mapping: "names and values",
}


def _checked(hint: Any, now: Any, value: Any, name: str) -> Any:
    """A value of a field's declared type, so that a wrong one is refused here and by name.

    YAML takes `5e-4` for text and only `5.0e-4` for a number; both are meant. It has lists
    where we have tuples.
    """
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if type(value) in options:
        return value
    wanted = next(option for option in options if option is not type(None))
    kind: Any = get_origin(wanted) or wanted
    if kind is Literal:
        if value not in get_args(wanted):
            raise ValueError(f"{name} is {value!r}, not one of {', '.join(get_args(wanted))}")
        return value
    if hasattr(kind, "__dataclass_fields__"):
        if isinstance(value, kind):
            return value
        if isinstance(value, Mapping):
            return replaced(kind() if now is None else now, value, f"{name}.")
        raise ValueError(f"{name} is {value!r} and must be {_KINDS[Mapping]}")
    if kind is float and not isinstance(value, bool):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return float(value)
    if kind is tuple and isinstance(value, list | tuple):
        inner = get_args(wanted)[0]
        return tuple(_checked(inner, None, entry, f"{name}[{i}]") for i, entry in enumerate(value))
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{name} is {value!r} and must be {_KINDS[kind]}")
    return value
