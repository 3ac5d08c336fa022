"""Configurations: frozen dataclasses of plain values, checked when they are created."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import difflib
import hashlib
import json
import operator
import types
from collections.abc import Collection, Mapping
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

_C = TypeVar("_C", bound=Any)


class Config:
    """Base class of configurations: copies, plain values and a digest."""

    __slots__ = ()

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for YAML or JSON."""
        return dataclasses.asdict(self)  # type: ignore[call-overload,no-any-return]

    @property
    def digest(self) -> str:
        """sha256 of the settings, equal in all processes."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()


def check_numbers(
    config: Any, *names: str, least: float | None = None, above: float | None = None,
    most: float | None = None, below: float | None = None,
) -> None:  # fmt: skip
    """Refuse fields outside of bounds; a field that is None passes.

    Raises:
        ValueError: names the first such field, its value and the bounds.
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
            expected = " and ".join(f"{text} {bound}" for text, bound, _ in bounds)
            raise ValueError(f"{name} is {value}, but must be {expected}")


def check_choice(config: Any, name: str, choices: Collection[str]) -> None:
    """Refuse a field whose value is not one of the choices.

    Raises:
        ValueError: names the field, its value and the choices.
    """
    if (value := getattr(config, name)) not in choices:
        raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(choices)}")


def is_iso_date(text: str) -> bool:
    """True if a text is a date that exists, as YYYY-MM-DD."""
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def check_dates(config: Any, *names: str) -> None:
    """Refuse fields that are neither empty nor an ISO date that exists.

    Raises:
        ValueError: names the field and its value.
    """
    for name in names:
        if (text := getattr(config, name)) and not is_iso_date(text):
            raise ValueError(f"{name} must be a date like 2018-04-30, not {text!r}")


def replaced(base: _C, changes: Mapping[str, Any], prefix: str = "") -> _C:
    """A configuration with some fields changed; a mapping changes fields of a nested one.

    Args:
        prefix: of field names in error messages.

    Raises:
        ValueError: a field does not exist, or its value is refused; names it.
    """
    hints = get_type_hints(type(base))
    unknown = sorted(set(changes) - set(hints))
    if unknown:
        matches = difflib.get_close_matches(unknown[0], hints, n=1)
        hint = f"did you mean {matches[0]}? " if matches else ""
        raise ValueError(
            f"no setting {prefix}{unknown[0]}; {hint}there are {', '.join(sorted(hints))}"
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


def _checked(hint: Any, current: Any, value: Any, name: str) -> Any:
    """The value converted to a field's declared type; a wrong one is refused by name.

    YAML reads `5e-4` as text and only `5.0e-4` as a number; both are accepted. YAML's lists
    become tuples.
    """
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if type(value) in options:
        return value
    declared = next(option for option in options if option is not type(None))
    kind: Any = get_origin(declared) or declared
    if kind is Literal:
        if value not in get_args(declared):
            raise ValueError(f"{name} is {value!r}, not one of {', '.join(get_args(declared))}")
        return value
    if hasattr(kind, "__dataclass_fields__"):
        if isinstance(value, kind):
            return value
        if isinstance(value, Mapping):
            return replaced(kind() if current is None else current, value, f"{name}.")
        raise ValueError(f"{name} is {value!r} and must be {_KINDS[Mapping]}")
    if kind is float and not isinstance(value, bool):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return float(value)
    if kind is tuple and isinstance(value, list | tuple):
        inner = get_args(declared)[0]
        return tuple(_checked(inner, None, entry, f"{name}[{i}]") for i, entry in enumerate(value))
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{name} is {value!r} and must be {_KINDS[kind]}")
    return value
