"""Bytes of an immutable object over HTTP: Range, If-Range, If-None-Match, HEAD.

RFC 9110 section 14. One range is served as 206; several in one request are
answered with the whole object, as the RFC allows. Bytes are read by the store, in the threads of
their dataset: a disk that hangs blocks no other dataset, as Starlette's FileResponse would.
"""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import quote

import orjson
import xxhash
from fastapi import Request
from starlette.responses import Response, StreamingResponse

from evofeed.service.problems import Problem
from evofeed.service.snapshots.catalog import ReadAt
from evofeed.service.state import Service

CHUNK = 1 << 20
WHOLE = 8 << 20  # bytes up to which a body is read and sent at once
ARROW: Final = "application/vnd.apache.arrow.file"
_FOREVER: Final = "max-age=31536000, immutable"

NOT_MODIFIED: Final[dict[int | str, dict[str, Any]]] = {
    304: {"description": "it is the one named in If-None-Match"}
}
"""The `responses` of a route that answers with `immutable_json`, for OpenAPI."""


def described(media_type: str) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that answers with `immutable_response`, for OpenAPI."""
    full = {"description": "the whole object", "content": {media_type: {}}}
    part = {"description": "the range asked for", "content": {media_type: {}}}
    return {200: full, 206: part, **NOT_MODIFIED}


def immutable_json(request: Request, value: Any) -> Response:
    """A JSON answer that depends only on digests in its URL, or 304."""
    data = orjson.dumps(value)
    tag = xxhash.xxh3_128_hexdigest(data)
    return immutable_bytes(request, tag, data, "application/json")


def immutable_bytes(request: Request, tag: str, data: bytes, media_type: str) -> Response:
    """Immutable bytes with this ETag."""

    def read(offset: int, length: int) -> bytes:
        return data[offset : offset + length]

    return immutable_response(request, tag, len(data), read, media_type=media_type)


def parse_range(header: str, size: int) -> tuple[int, int] | None:
    """Start and stop of the requested range; None for the full object."""
    match = re.fullmatch(r"bytes=[ \t]*([0-9]{0,99})-([0-9]{0,99})[ \t]*", header)
    if match is None or not any(match.groups()):
        return None
    first, last = match.groups()
    if not first:
        start, stop = max(0, size - int(last)), size
    elif last and int(last) < int(first):
        return None  # malformed ranges are ignored
    else:
        start, stop = int(first), min(int(last) + 1, size) if last else size
    if start >= size or start >= stop:
        message = f"the range begins behind the end, at {size} bytes"
        headers = {"Content-Range": f"bytes */{size}"}
        hint = "read the size from the manifest or with HEAD"
        raise Problem(416, "range_not_satisfiable", message, next=hint, headers=headers)
    return start, stop


def matches(header: str, etag: str) -> bool:
    """True if an If-None-Match or If-Match list names `etag` (or is `*`)."""
    tags = [tag.strip() for tag in header.split(",")]
    return "*" in tags or etag in [tag.removeprefix("W/") for tag in tags]


def immutable_response(
    request: Request, tag: str, size: int, read: ReadAt, *, media_type: str = ARROW,
    location: str | None = None,
) -> Response:  # fmt: skip
    """The object with this ETag, a range of it, or 304.

    With a `location`, what makes the nginx in front send it; that answers Range by itself.
    """
    # `public` would let a shared cache serve it without a token (RFC 9111, 3.5).
    service: Service = request.app.state.service
    whose, etag = "public" if service.settings.reading_is_free else "private", f'"{tag}"'
    headers = {"ETag": etag, "Cache-Control": f"{whose}, {_FOREVER}"}
    etags = request.headers.get("if-none-match")
    if etags and matches(etags, etag):
        return Response(status_code=304, headers=headers)
    if location is not None:
        # Only for nginx' answer with the file: an error for a missing file must not be cached.
        headers["X-Accel-Cache-Control"] = headers.pop("Cache-Control")
        headers["X-Accel-Redirect"] = quote(location)
        return Response(status_code=200, headers=headers, media_type=media_type)
    headers["Accept-Ranges"] = "bytes"
    header, span = request.headers.get("range"), None
    if header and request.headers.get("if-range", etag).strip() == etag:
        span = parse_range(header, size)
    start, stop = span or (0, size)
    status = 206 if span else 200
    if span:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    headers["Content-Length"] = str(stop - start)
    if request.scope.get("evofeed.head"):  # no body is sent, so none is read
        return Response(status_code=status, headers=headers, media_type=media_type)
    if stop - start <= WHOLE:
        return Response(memoryview(read(start, stop - start)), status, headers, media_type)
    return StreamingResponse(_chunks(request, read, start, stop), status, headers, media_type)


async def _chunks(request: Request, read: ReadAt, start: int, stop: int) -> AsyncIterator[bytes]:
    work = request.app.state.service.work
    dataset = str(request.path_params.get("name", ""))
    for offset in range(start, stop, CHUNK):
        piece = functools.partial(read, offset, min(CHUNK, stop - offset))
        yield bytes(await work.run(piece, dataset=dataset))
