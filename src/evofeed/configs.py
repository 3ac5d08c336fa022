"""Plain values, from YAML or JSON, to checked fields of a configuration."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

_C = TypeVar("_C", bound=Any)


def replaced(base: _C, changes: Mapping[str, Any], prefix: str = "") -> _C:
    """A configuration with some fields changed; a mapping changes fields of a nested one.

    Args:
        base: any dataclass of plain values.
        changes: new values by field.
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
