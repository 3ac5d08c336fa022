"""What JSON bodies have in common, those of requests and those of answers."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict

from evofeed.service.names import iso

_V = TypeVar("_V", bound=BaseModel)


def _as_text(value: Any) -> Any:
    return iso(value) if isinstance(value, float) else value


Instant = Annotated[str, BeforeValidator(_as_text)]
"""Unix seconds, which clients read as ISO 8601 UTC."""


class Body(BaseModel):
    """A request's body: the fields there are and no others, each of its own kind.

    `true` is no number, `1.0` no integer and `"1"` neither.
    """

    model_config = ConfigDict(extra="forbid", strict=True)


def view_of(kind: type[_V], row: object, **more: Any) -> _V:
    """An answer of a row's columns of the same names, and of `more` in their place."""
    same = {name: getattr(row, name) for name in kind.model_fields if name not in more}
    return kind(**same, **more)


def strict_json(body: bytes) -> Any:
    """A body as parsed JSON, as RFC 8259 has it and every database can keep it.

    Raises:
        json.JSONDecodeError: NaN, Infinity, a NUL or half a surrogate pair in a text, or no JSON
            at all.
    """
    found = orjson.loads(body)
    if b"\\u0000" in body and b"\\u0000" in orjson.dumps(found):
        raise json.JSONDecodeError("a text holds NUL", "", 0)
    return found
