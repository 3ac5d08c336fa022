"""Names that may appear in a URL, and times as clients read them."""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Final

from fastapi import Path
from pydantic import StringConstraints

NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""Datasets and refs: no slash, no dot first, no space, ASCII only."""

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
"""Words of a person: lines and tabs, no other control characters."""

DigestValue = Annotated[str, StringConstraints(pattern=DIGEST_PATTERN)]


def is_name(text: str) -> bool:
    """True if `text` may name a dataset or a ref."""
    return re.fullmatch(NAME_PATTERN, text) is not None and not text.endswith("\n")


def iso(seconds: float) -> str:
    """Unix seconds as ISO 8601 UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
