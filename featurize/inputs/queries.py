"""The query of an alignment, without parsing the rest of it."""

from __future__ import annotations

from evofeed.base.errors import MsaError
from evofeed.featurize.formats.a3m import without_annotation
from evofeed.featurize.inputs.sources import Role


def query_of(data: bytes, role: Role, *, path: str = "") -> str:
    """Letters of an alignment's first sequence, gaps removed.

    Raises:
        MsaError: it has no sequence.
    """
    letters = _of_a3m(without_annotation(data)[0]) if role == "a3m" else _of_stockholm(data)
    query = letters.decode("utf-8", "replace").replace("-", "").replace(".", "")
    if not query:
        raise MsaError("no aligned sequence in it: write it again or remove it", path=path)
    return query.upper()


def _of_a3m(data: bytes) -> bytes:
    start = data.find(b">")
    if start < 0:
        return b""
    end = data.find(b"\n>", start)
    lines = data[start : end if end >= 0 else len(data)].splitlines()[1:]
    letters = b"".join(line.strip() for line in lines if not line.startswith(b"#"))
    return letters.translate(None, b"abcdefghijklmnopqrstuvwxyz")


def _of_stockholm(data: bytes) -> bytes:
    name = b""
    parts = []
    for line in data.splitlines():
        if not line.strip() or line.startswith((b"#", b"//")):
            continue
        words = line.split()
        name = name or words[0]
        if words[0] == name and len(words) == 2:
            parts.append(words[1])
    return b"".join(parts)
