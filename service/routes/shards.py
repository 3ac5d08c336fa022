"""Shard bytes: whole or by range, as any HTTP cache likes them."""

from __future__ import annotations

import time
from typing import Annotated
from urllib.parse import quote

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.responses import Response

from evofeed.service.database.tables import record
from evofeed.service.names import SHARD_PATTERN, DatasetName, ShardName, iso
from evofeed.service.requests.body import Body
from evofeed.service.requests.ranges import (
    ARROW,
    cache_control,
    described,
    immutable_response,
    matches,
)
from evofeed.service.requests.routing import Context, make_router, scope
from evofeed.service.snapshots.snapshot import ShardFile

router = make_router("/v1/datasets/{name}", "shards")


class Wanted(Body):
    """Shards to fetch."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"shards": ["0" * 64 + ".arrow"]}]},
    )

    shards: list[Annotated[str, StringConstraints(pattern=SHARD_PATTERN)]] = Field(
        min_length=1, max_length=1000
    )


class ShardUrl(BaseModel):
    """Where a shard's bytes are; check them against `sha256`."""

    shard: str
    url: str = Field(description="a path is one of this service")
    nbytes: int
    sha256: str


class ShardUrls(BaseModel):
    """Where shards' bytes are, and until when."""

    urls: list[ShardUrl]
    expires_at: str | None = Field(description="null: these URLs do not expire")


@router.post("/urls")
@scope("read")
def sign_urls(ctx: Context, response: Response, name: DatasetName, wanted: Wanted) -> ShardUrls:
    """URLs that lead to the bytes: presigned by the bucket, or paths of this service."""
    files = [ctx.service.catalog.shard(name, shard) for shard in wanted.shards]
    now, seconds = time.time(), ctx.service.settings.url_seconds
    if ctx.principal.expires_at is not None:
        seconds = max(1, min(seconds, int(ctx.principal.expires_at - now)))
    signed = ctx.service.catalog.view(name).sign(wanted.shards, seconds)
    urls = signed or [f"/v1/datasets/{name}/shards/{file.name}" for file in files]
    if signed:
        with ctx.service.database.write() as session:
            record(
                session, ctx.principal.id, "shards.sign", name, count=len(files), seconds=seconds
            )
    response.headers["Cache-Control"] = "no-store"
    return ShardUrls(
        urls=[
            ShardUrl(shard=file.name, url=url, nbytes=file.nbytes, sha256=file.sha256)
            for file, url in zip(files, urls, strict=True)
        ],
        expires_at=iso(now + seconds) if signed else None,
    )


@router.get("/shards/{shard}", response_class=Response, responses=described(ARROW))
@scope("read", reads_bytes=True)
def get_shard(ctx: Context, name: DatasetName, shard: ShardName) -> Response:
    """A shard's bytes; Range, If-Range and If-None-Match as RFC 9110 has them."""
    file = ctx.service.catalog.shard(name, shard)
    # nginx compares If-Range with a tag of its own, and would send a resumed download whole.
    resumed = {"range", "if-range"} <= set(ctx.request.headers)
    if ctx.service.settings.accel and file.path is not None and not resumed:
        return _by_nginx(ctx.request, ctx.service.settings.accel, file)
    return immutable_response(
        ctx.request,
        etag=f'"{file.sha256}"',
        size=file.nbytes,
        read=file.read,
        media_type=ARROW,
    )


def _by_nginx(request: Request, location: str, file: ShardFile) -> Response:
    """What makes the nginx in front send the file; it answers Range, which it knows better."""
    headers = {
        "ETag": f'"{file.sha256}"',
        "Cache-Control": cache_control(request),
        "X-Accel-Redirect": quote(f"{location.rstrip('/')}{file.path}"),
    }
    if (known := request.headers.get("if-none-match")) and matches(known, headers["ETag"]):
        del headers["X-Accel-Redirect"]
        return Response(status_code=304, headers=headers)
    return Response(status_code=200, headers=headers, media_type=ARROW)
