"""What every JSON body has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Body(BaseModel):
    """A request's body: the fields there are and no others, each of its own kind.

    `true` is no number, `1.0` no integer and `"1"` neither.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
