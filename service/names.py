"""Types of names in URLs, and the base class of JSON bodies."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Annotated, Any, Final, TypeVar

from fastapi import Path
from pydantic import BaseModel, ConfigDict, StringConstraints

NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""Datasets and refs: ASCII without slashes, spaces or a leading dot."""

DIGEST_PATTERN: Final = r"^[0-9a-f]{64}$"
"""Snapshot digests: sha256 of the canonical manifest, hexadecimal."""

SHARD_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,127}(\.[a-z0-9]{1,16}){0,2}$"
"""Shard file names as manifests list them; never a path."""

DatasetName = Annotated[str, Path(pattern=NAME_PATTERN, description="dataset name")]
RefName = Annotated[str, Path(pattern=NAME_PATTERN, description="ref, such as `main`")]
Digest = Annotated[str, Path(pattern=DIGEST_PATTERN, description="snapshot digest, sha256")]
ShardName = Annotated[str, Path(pattern=SHARD_PATTERN, description="shard file name")]
NewName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Message = Annotated[
    str, StringConstraints(max_length=1000, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f]*$")
]
"""Free text: lines and tabs, no other control characters."""

DigestValue = Annotated[str, StringConstraints(pattern=DIGEST_PATTERN)]


def iso(seconds: float) -> str:
    """Unix seconds as ISO 8601 UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")


_V = TypeVar("_V")


class Body(BaseModel):
    """A request's body: unknown fields and wrong types are refused.

    `true` is not a number, `1.0` no integer and `"1"` neither.
    """

    model_config = ConfigDict(extra="forbid", strict=True)


def view_of(kind: type[_V], row: object, **more: Any) -> _V:
    """An answer (a dataclass) of a row's columns of the same names, and of `more` in their place.

    Unix seconds become ISO 8601 UTC.
    """
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    values = {name: getattr(row, name) for name in names if name not in more} | more
    return kind(**{n: iso(v) if isinstance(v, float) else v for n, v in values.items()})
