"""What every JSON body has in common."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Body(BaseModel):
    """A request's body: the fields there are and no others, each of its own kind.

    `true` is no number, `1.0` no integer and `"1"` neither.
    """

    model_config = ConfigDict(extra="forbid", strict=True)


def strict_json(text: str) -> Any:
    """A text as parsed JSON, as RFC 8259 has it and every database can keep it.

    Raises:
        json.JSONDecodeError: NaN, Infinity, a NUL or half a surrogate pair in a text, or no JSON
            at all.
    """
    found = json.loads(text, parse_constant=_no_constant)
    if "\\u" in text:  # the only way to write one of these
        plain = json.dumps(found, ensure_ascii=False)
        if "\\u0000" in plain or any("\ud800" <= c <= "\udfff" for c in plain):
            raise json.JSONDecodeError("a text holds NUL or half a character", text, 0)
    return found


def _no_constant(name: str) -> Any:
    raise json.JSONDecodeError(f"{name} is not JSON", name, 0)
