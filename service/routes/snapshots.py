"""Snapshots: which there are, the manifest's own bytes, the index's own bytes."""

from __future__ import annotations

from pydantic import BaseModel, Field
from starlette.responses import Response

from evofeed.service.names import DatasetName, Digest
from evofeed.service.requests.body import Instant, view_of
from evofeed.service.requests.ranges import (
    ARROW,
    described,
    immutable_bytes,
    immutable_response,
)
from evofeed.service.requests.routing import Context, Limit, make_router, scope
from evofeed.service.snapshots.seen import snapshots_of

router = make_router("/v1/datasets/{name}/snapshots", "snapshots")


class SnapshotView(BaseModel):
    """A snapshot in short."""

    digest: str
    written_at: Instant = Field(description="when the service saw it first")
    parent: str | None
    num_chains: int
    num_shards: int
    nbytes: int = Field(description="bytes of all shards")
    num_dropped: int


class SnapshotList(BaseModel):
    """Snapshots, newest first."""

    snapshots: list[SnapshotView]
    more: bool = Field(description="true if older ones were left out by `limit`")


@router.get("")
@scope("read")
def list_snapshots(ctx: Context, name: DatasetName, limit: Limit = 100) -> SnapshotList:
    """Snapshots there are, newest first."""
    view = ctx.service.catalog.view(name)
    dataset = ctx.service.catalog.dataset(name)
    digests = snapshots_of(ctx.service.database, dataset.id, view)
    found = [(digest, at, view.manifest(digest)) for digest, at in digests[:limit]]
    return SnapshotList(
        snapshots=[
            view_of(
                SnapshotView,
                manifest,
                digest=digest,
                written_at=at,
                num_shards=len(manifest.shards),
                nbytes=sum(shard.nbytes for shard in manifest.shards),
                num_dropped=len(manifest.dropped),
            )
            for digest, at, manifest in found
        ],
        more=len(digests) > limit,
    )


@router.get("/{digest}", response_class=Response, responses=described("application/json"))
@scope("read", reads_bytes=True)
def get_manifest(ctx: Context, name: DatasetName, digest: Digest) -> Response:
    """The canonical manifest: its sha256 is the digest."""
    data = ctx.service.catalog.snapshot(name, digest).manifest_bytes
    return immutable_bytes(ctx.request, digest, data, "application/json")


@router.get("/{digest}/index", response_class=Response, responses=described(ARROW))
@scope("read", reads_bytes=True)
def get_index(ctx: Context, name: DatasetName, digest: Digest) -> Response:
    """The index: an Arrow IPC file, one row per chain."""
    snapshot = ctx.service.catalog.snapshot(name, digest)
    return immutable_response(
        ctx.request,
        etag=f'"{snapshot.manifest.index_sha256}"',
        size=snapshot.manifest.index_nbytes,
        read=snapshot.read_index,
        media_type=ARROW,
    )
