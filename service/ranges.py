"""Bytes of an immutable object over HTTP: Range, If-Range, If-None-Match, HEAD.

RFC 9110 section 14. One range is served as 206; several in one request are
answered with the whole object, as the RFC allows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from fastapi import Request
from starlette.responses import Response, StreamingResponse

from evofeed.service.problems import Problem

CHUNK = 1 << 20
WHOLE = 8 << 20  # up to here a body is read at once: one read, one write
ARROW: Final = "application/vnd.apache.arrow.file"
IMMUTABLE = "public, max-age=31536000, immutable"

ReadAt = Callable[[int, int], bytes | bytearray]
"""`read(offset, length)`: exactly those bytes."""


def described(media_type: str) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that answers with `immutable_response`, for OpenAPI."""
    whole = {"description": "the whole object", "content": {media_type: {}}}
    part = {"description": "the range asked for", "content": {media_type: {}}}
    return {200: whole, 206: part, 304: {"description": "it is the one named in If-None-Match"}}


def parse_range(header: str, size: int) -> tuple[int, int] | None:
    """First and last-plus-one byte asked for, or None to send everything.

    Raises:
        Problem: 416, the range begins behind the end.
    """
    if not re.fullmatch(r"bytes=[0-9, \t-]{1,200}", header) or "," in header:
        return None
    first, dash, last = header.removeprefix("bytes=").strip().partition("-")
    if not dash or not (first or last) or not all(p.isdigit() for p in (first, last) if p):
        return None
    if len(first) > 18 or len(last) > 18:
        raise _unsatisfiable(size)
    if not first:
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < int(first):
            return None  # malformed, so ignored
    if start >= size or start >= stop:
        raise _unsatisfiable(size)
    return start, stop


def matches(header: str, etag: str) -> bool:
    """True if an If-None-Match or If-Match list names `etag` (or is `*`)."""
    tags = [tag.strip() for tag in header.split(",")]
    return "*" in tags or etag in [tag.removeprefix("W/") for tag in tags]


def immutable_response(
    request: Request, *, etag: str, size: int, read: ReadAt, media_type: str
) -> Response:
    """The object, a range of it, or 304.

    Args:
        request: whose headers say what is wanted.
        etag: strong tag, quoted.
        size: bytes of the whole object.
        read: reads a span of it.
        media_type: Content-Type.

    Raises:
        Problem: 416.
    """
    headers = {"ETag": etag, "Cache-Control": IMMUTABLE, "Accept-Ranges": "bytes"}
    if (known := request.headers.get("if-none-match")) and matches(known, etag):
        return Response(status_code=304, headers=headers)
    span = _wanted(request.headers, etag, size)
    start, stop = span or (0, size)
    status = 206 if span else 200
    if span:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    headers["Content-Length"] = str(stop - start)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=media_type)
    if stop - start <= WHOLE:
        return Response(bytes(read(start, stop - start)), status, headers, media_type)
    return StreamingResponse(_chunks(read, start, stop), status, headers, media_type)


def _wanted(headers: Mapping[str, str], etag: str, size: int) -> tuple[int, int] | None:
    header = headers.get("range")
    if not header or headers.get("if-range", etag).strip() != etag:
        return None
    return parse_range(header, size)


def _chunks(read: ReadAt, start: int, stop: int) -> Iterator[bytes]:
    for at in range(start, stop, CHUNK):
        yield bytes(read(at, min(CHUNK, stop - at)))


def _unsatisfiable(size: int) -> Problem:
    return Problem(
        416,
        "range_not_satisfiable",
        f"the range begins behind the end, at {size} bytes",
        next="read the size from the manifest or with HEAD",
        headers={"Content-Range": f"bytes */{size}"},
    )
