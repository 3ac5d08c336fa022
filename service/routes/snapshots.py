"""Snapshots: which there are, and the bytes of manifests, indexes and shards."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

from fastapi import Path
from pydantic import BaseModel, Field, StringConstraints
from starlette.responses import Response

from evofeed.service.database.tables import record
from evofeed.service.names import SHARD_PATTERN, Body, DatasetName, Digest, ShardName, iso, view_of
from evofeed.service.problems import Problem
from evofeed.service.requests.ranges import ARROW, described, immutable_bytes, immutable_response
from evofeed.service.requests.routing import Context, Limit, make_router, scope
from evofeed.service.snapshots.catalog import snapshots_of
from evofeed.store.inner import shard_key

router = make_router("/v1/datasets/{name}", "snapshots")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotView:
    """A snapshot in short; `written_at` is when it was written or a ref first pointed at it."""

    digest: str
    written_at: str
    parent: str | None
    num_chains: int
    num_shards: int
    nbytes: int
    num_dropped: int


class SnapshotList(BaseModel):
    """Snapshots, newest first."""

    snapshots: list[SnapshotView]
    more: bool = Field(description="true if older ones were left out by `limit`")


@router.get("/snapshots")
@scope("read")
def list_snapshots(ctx: Context, name: DatasetName, limit: Limit = 100) -> SnapshotList:
    """Snapshots there are, newest first."""
    view = ctx.service.catalog.view(name)
    dataset = ctx.service.catalog.dataset(name)
    digests = snapshots_of(ctx.service.database, dataset.id, view)
    newest = [(digest, written_at, view.manifest(digest)) for digest, written_at in digests[:limit]]
    return SnapshotList(
        snapshots=[
            view_of(
                SnapshotView,
                manifest,
                digest=digest,
                written_at=written_at,
                num_shards=len(manifest.shards),
                num_dropped=len(manifest.dropped),
                nbytes=sum(shard.nbytes for shard in manifest.shards),
            )
            for digest, written_at, manifest in newest
        ],
        more=len(digests) > limit,
    )


@router.get("/snapshots/{digest}", response_class=Response, responses=described("application/json"))
@scope("read", reads_bytes=True)
def get_manifest(ctx: Context, name: DatasetName, digest: Digest) -> Response:
    """The canonical manifest: its sha256 is the digest."""
    catalog = ctx.service.catalog
    data = catalog.manifest_bytes(catalog.snapshot(name, digest))
    return immutable_bytes(ctx.request, digest, data, "application/json")


@router.get("/snapshots/{digest}/index", response_class=Response, responses=described(ARROW))
@scope("read", reads_bytes=True)
def get_index(ctx: Context, name: DatasetName, digest: Digest) -> Response:
    """The index: an Arrow IPC file, one row per chain."""
    manifest = ctx.service.catalog.snapshot(name, digest).manifest
    read = ctx.service.catalog.view(name).reader(f"snapshots/{digest}/index.arrow")
    return immutable_response(ctx.request, manifest.index_sha256, manifest.index_nbytes, read)


@router.get(
    "/snapshots/{digest}/{table}.arrow", response_class=Response, responses=described(ARROW)
)
@scope("read", reads_bytes=True)
def get_table(
    ctx: Context,
    name: DatasetName,
    digest: Digest,
    table: Annotated[
        str, Path(pattern=r"^[a-z]{1,32}$", description="such as `assemblies` or `entries`")
    ],
) -> Response:
    """The table of complexes or entries: a file that the manifest lists."""
    manifest, file = ctx.service.catalog.snapshot(name, digest).manifest, f"{table}.arrow"
    if (entry := manifest.file_table.get(file)) is None:
        message, hint = f"this snapshot has no {file}", "its manifest lists the files that it has"
        raise Problem(404, "not_found", message, next=hint)
    read = ctx.service.catalog.view(name).reader(f"snapshots/{digest}/{file}")
    return immutable_response(ctx.request, entry["sha256"], entry["nbytes"], read)


class Wanted(Body, json_schema_extra={"examples": [{"shards": ["0" * 64 + ".arrow"]}]}):
    """Shards to fetch."""

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
    view = ctx.service.catalog.view(name)
    files = [view.find_shard(shard) for shard in wanted.shards]
    now, seconds = time.time(), ctx.service.settings.url_seconds
    if ctx.principal.expires_at is not None:
        seconds = max(1, min(seconds, int(ctx.principal.expires_at - now)))
    signed = view.sign(wanted.shards, seconds)
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
    view = ctx.service.catalog.view(name)
    file = view.find_shard(shard)
    # nginx compares If-Range with a tag of its own, and would send a resumed download whole.
    resumed = {"range", "if-range"} <= set(ctx.request.headers)
    accel = "" if resumed else ctx.service.settings.accel
    path = view.path_of(shard) if accel else None
    location = f"{accel.rstrip('/')}{path}" if path else None
    read = view.reader(shard_key(shard))
    return immutable_response(ctx.request, file.sha256, file.nbytes, read, location=location)
