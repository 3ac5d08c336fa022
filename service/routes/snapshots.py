"""Snapshots: what there is, the manifest's own bytes, the index's own bytes."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from evofeed.service.names import DatasetName, Digest
from evofeed.service.requests.body import Instant, view_of
from evofeed.service.requests.ranges import (
    ARROW,
    NOT_MODIFIED,
    described,
    immutable_json,
    immutable_response,
)
from evofeed.service.requests.routing import Limit, ServiceDep, make_router, scope
from evofeed.service.snapshots.seen import snapshots_of
from evofeed.store.inner import column_kinds

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


class SnapshotSummary(BaseModel):
    """What a snapshot holds, without its shard list."""

    digest: str
    parent: str | None
    num_chains: int
    num_shards: int
    nbytes: int
    columns: dict[str, str] = Field(description="columns a filter may name, with their kind")
    config: dict[str, Any]
    dropped: list[dict[str, Any]] = Field(description="at most 1000; all are in the manifest")


@router.get("")
@scope("read")
def list_snapshots(
    service: ServiceDep,
    name: DatasetName,
    limit: Limit = 100,
) -> SnapshotList:
    """Snapshots there are, newest first."""
    view = service.catalog.view(name)
    dataset = service.catalog.dataset(name)
    digests = snapshots_of(service.database, dataset.id, view)
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
@scope("read", counted=False)
def get_manifest(
    request: Request, service: ServiceDep, name: DatasetName, digest: Digest
) -> Response:
    """The canonical manifest: its sha256 is the digest."""
    data = service.catalog.snapshot(name, digest).manifest_bytes
    return immutable_response(
        request,
        etag=f'"{digest}"',
        size=len(data),
        read=lambda offset, length: data[offset : offset + length],
        media_type="application/json",
    )


@router.get("/{digest}/index", response_class=Response, responses=described(ARROW))
@scope("read", counted=False)
def get_index(request: Request, service: ServiceDep, name: DatasetName, digest: Digest) -> Response:
    """The index: an Arrow IPC file, one row per chain."""
    snapshot = service.catalog.snapshot(name, digest)
    return immutable_response(
        request,
        etag=f'"{snapshot.manifest.index_sha256}"',
        size=snapshot.manifest.index_nbytes,
        read=snapshot.read_index,
        media_type=ARROW,
    )


@router.get("/{digest}/summary", response_model=SnapshotSummary, responses=NOT_MODIFIED)
@scope("read")
def get_summary(
    request: Request, service: ServiceDep, name: DatasetName, digest: Digest
) -> Response:
    """What the snapshot holds, in short, and the columns its chains can be filtered by."""
    snapshot = service.catalog.snapshot(name, digest)
    manifest = snapshot.manifest
    summary = SnapshotSummary(
        digest=digest,
        parent=manifest.parent,
        num_chains=manifest.num_chains,
        num_shards=len(manifest.shards),
        nbytes=sum(shard.nbytes for shard in manifest.shards),
        columns=column_kinds(snapshot.index.schema),
        config=manifest.config,
        dropped=[dict(item) for item in manifest.dropped[:1000]],
    )
    return immutable_json(request, summary.model_dump())
