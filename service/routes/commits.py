"""Writing over HTTP: shards, snapshots of them, whole snapshots, merges."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import Request
from pydantic import BaseModel, Field, StringConstraints, model_validator

from evofeed.errors import RefConflict
from evofeed.service.access.audit import record
from evofeed.service.access.auth import Principal
from evofeed.service.access.quotas import require_bytes
from evofeed.service.database.tables import UploadRow
from evofeed.service.names import (
    SHARD_PATTERN,
    DatasetName,
    Digest,
    Message,
    NewName,
    ShardName,
)
from evofeed.service.problems import Problem
from evofeed.service.refs.history import known_ref
from evofeed.service.refs.policies import policy_of, require_movable
from evofeed.service.requests.body import Body, view_of
from evofeed.service.requests.routing import PrincipalDep, ServiceDep, make_router, scope
from evofeed.service.routes.refs import IfMatch, IfNoneMatch, expected, ref_moved
from evofeed.service.routes.statistics import digest_of
from evofeed.service.snapshots.snapshot import StoreView
from evofeed.service.state import Service
from evofeed.service.uploads import commits
from evofeed.service.uploads.received import PATIENCE, Received, received
from evofeed.store import Manifest, ShardEntry

router = make_router("/v1/datasets/{name}", "writing")
ShardText = Annotated[str, StringConstraints(pattern=SHARD_PATTERN)]
_BYTES: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


class StoredShard(BaseModel):
    """A shard that is in its dataset's place, and in no snapshot yet."""

    shard: str
    nbytes: int
    chains: int


class ShardNames(Body, json_schema_extra={"examples": [{"shards": ["0" * 64 + ".arrow"]}]}):
    """Shards by name."""

    shards: list[ShardText] = Field(max_length=10_000)


class MissingShards(BaseModel):
    """Shards that have to be sent."""

    missing: list[str]


class NewSnapshot(
    Body, json_schema_extra={"examples": [{"shards": ["0" * 64 + ".arrow"], "mode": "add"}]}
):
    """A snapshot to make of shards that are there."""

    shards: list[ShardText] = Field(min_length=1, max_length=10_000)
    mode: Literal["new", "add", "replace"] = Field(
        "new",
        description="`new`: of these shards alone; `add`: with the chains that the ref's snapshot "
        "has; `replace`: with them, but for those that the shards have too",
    )
    ref: NewName | None = Field("main", description="moved to it; null, for `new`: no ref is moved")
    message: Message = Field("", description="why, for the ref's history")
    config: dict[str, Any] = Field({}, description="how the chains were made, for `new`")
    dropped: list[dict[str, Any]] = Field(
        [], max_length=100_000, description="inputs that gave no chain, for `new`"
    )
    cluster_sizes: dict[str, int] | None = Field(
        None, description="size of each chain's sequence cluster, for `new`"
    )

    @model_validator(mode="after")
    def _base_needs_a_ref(self) -> NewSnapshot:
        if self.mode != "new" and self.ref is None:
            raise ValueError(f"`{self.mode}` needs a ref, whose snapshot has the other chains")
        return self


class Merge(Body, json_schema_extra={"examples": [{"dataset": "pdb-2026", "snapshot": "main"}]}):
    """A snapshot whose chains are added to those of a ref's."""

    dataset: NewName = Field(description="where it is; it may be the same")
    snapshot: NewName = Field("main", description="ref or digest")
    ref: NewName = "main"
    message: Message = Field("", description="why, for the ref's history")


class MadeSnapshot(BaseModel):
    """A snapshot that was written."""

    digest: str
    parent: str | None
    num_chains: int
    num_shards: int
    ref: str | None = Field(description="what points at it now, if a ref was moved")


@router.put("/shards/{shard}", status_code=201, openapi_extra=_BYTES)
@scope("publish", streamed=True)
async def put_shard(
    request: Request,
    service: ServiceDep,
    principal: PrincipalDep,
    name: DatasetName,
    shard: ShardName,
) -> StoredShard:
    """Send a shard; it is named by its sha256, and sending it twice is sending it once.

    Every chain in it is decoded before it is kept. A shard that no snapshot lists is kept for
    7 days.
    """
    if not commits.SHARD.fullmatch(shard):
        raise Problem(
            422, "bad_upload", "no shard is called so", next="name it by its sha256 and `.arrow`"
        )
    run = functools.partial(service.work.run, dataset=name, seconds=service.work.seconds * PATIENCE)
    length = int(request.headers.get("content-length", "0"))
    await run(functools.partial(_require_bytes, service, principal, length))
    await run(functools.partial(service.catalog.view, name))  # 404 before the body is taken in
    async with received(request, service, name) as body:
        if f"{body.sha256}.arrow" != shard:
            raise Problem(
                422,
                "digest_mismatch",
                f"what came has sha256 {body.sha256[:12]}, not {shard[:12]}",
                next="send it again; if it stays, the file is damaged",
            )
        keep = functools.partial(_kept, service, principal, name, shard, body)
        entry: ShardEntry = await run(keep, heavy=True)
    return StoredShard(shard=entry.name, nbytes=entry.nbytes, chains=entry.chains)


@router.post("/missing-shards")
@scope("publish", repeatable=False)
def find_missing_shards(
    service: ServiceDep, name: DatasetName, wanted: ShardNames
) -> MissingShards:
    """Which of these shards have to be sent before they can be in a snapshot."""
    return MissingShards(missing=commits.missing(service.catalog.view(name), wanted.shards))


@router.post("/snapshots", status_code=201)
@scope("publish", heavy=True, patience=PATIENCE)
def commit_snapshot(
    service: ServiceDep,
    principal: PrincipalDep,
    name: DatasetName,
    new: NewSnapshot,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> MadeSnapshot:
    """Make a snapshot of shards and move a ref to it, if nobody else moved it meanwhile.

    `If-Match: "DIGEST"` or `If-None-Match: *` as for moving a ref; neither where none is moved.
    What the ref pointed at is its parent.
    """
    view = service.catalog.view(name)
    expect = None
    if new.ref is not None:
        _require_movable(service, principal, name, new.ref)
        expect = expected(view, new.ref, if_match, if_none_match)
    with ref_moved(view, new.ref or ""):
        if new.ref is not None and new.mode != "new":
            _require_at(view, new.ref, expect)
        made = commits.commit(
            view,
            new.shards,
            mode=new.mode,
            ref=new.ref,
            expect=expect,
            move=commits.mover(service, principal, name, expect, new.message),
            config=new.config,
            dropped=new.dropped,
            cluster_sizes=new.cluster_sizes,
        )
    return _made(made.digest, made.manifest, new.ref)


@router.put("/snapshots/{digest}", status_code=201, openapi_extra=_BYTES)
@scope("publish", streamed=True)
async def put_snapshot(
    request: Request,
    service: ServiceDep,
    principal: PrincipalDep,
    name: DatasetName,
    digest: Digest,
) -> MadeSnapshot:
    """Send a snapshot as it is elsewhere, once its shards are here; no ref moves.

    The body is the canonical manifest, a line feed, the index, and the manifest's other files
    in the order of their names. All must be what the digest says, and the index that of the
    shards.
    """
    run = functools.partial(service.work.run, dataset=name, seconds=service.work.seconds * PATIENCE)
    await run(functools.partial(service.catalog.view, name))  # 404 before the body is taken in
    async with received(request, service, name) as body:
        keep = functools.partial(_kept_snapshot, service, principal, name, digest, body)
        manifest: Manifest = await run(keep, heavy=True)
    return _made(digest, manifest, None)


@router.post("/merge", status_code=201)
@scope("publish", heavy=True, patience=PATIENCE)
def merge_snapshot(
    service: ServiceDep,
    principal: PrincipalDep,
    name: DatasetName,
    new: Merge,
    if_match: IfMatch = None,
) -> MadeSnapshot:
    """Add another snapshot's chains to a ref's: a new snapshot that the ref is moved to.

    A chain that both have with the same bytes is kept once; if its bytes differ, nothing is
    done. `If-Match: "DIGEST"` as for moving a ref.
    """
    principal.require("read")
    principal.require_dataset(new.dataset)
    view = service.catalog.view(name)
    _require_movable(service, principal, name, new.ref)
    expect = expected(view, new.ref, if_match, None)
    digest = digest_of(service, new.dataset, new.snapshot)
    with ref_moved(view, new.ref):
        _require_at(view, new.ref, expect)
        made = commits.merge_into(
            view,
            service.catalog.view(new.dataset).uri,
            digest,
            new.ref,
            commits.mover(service, principal, name, expect, new.message),
        )
    return _made(made.digest, made.manifest, new.ref)


def _require_movable(service: Service, principal: Principal, name: str, ref: str) -> None:
    policy = policy_of(service.database, service.catalog.dataset(name).id, ref)
    require_movable(policy, ref, principal)


def _require_at(view: StoreView, ref: str, expect: str | None) -> None:
    """Refuse to add to a ref that is not where it was said to be."""
    if expect is None or known_ref(view, ref) != expect:
        raise RefConflict(f"ref {ref!r} is not at {(expect or 'any snapshot')[:12]}")


def _require_bytes(service: Service, principal: Principal, nbytes: int) -> None:
    with service.database.read() as session:
        require_bytes(session, principal.id, nbytes)


def _kept(
    service: Service, principal: Principal, name: str, shard: str, body: Received
) -> ShardEntry:
    view, dataset = service.catalog.view(name), service.catalog.dataset(name)
    with _charged(service, principal, dataset.id, shard, body.nbytes):
        entry = commits.keep_shard(view, body.buffer(), shard)
    with service.database.write() as session:
        detail = {"nbytes": entry.nbytes, "chains": entry.chains}
        record(session, principal.id, "shard.upload", f"{name}/{shard[:16]}", **detail)
    return entry


def _kept_snapshot(
    service: Service, principal: Principal, name: str, digest: str, body: Received
) -> Manifest:
    view, dataset = service.catalog.view(name), service.catalog.dataset(name)
    with _charged(service, principal, dataset.id, digest, body.nbytes):
        manifest = commits.keep_snapshot(view, digest, memoryview(body.buffer()))
    with service.database.write() as session:
        record(session, principal.id, "snapshot.upload", f"{name}/{digest[:16]}")
    return manifest


@contextlib.contextmanager
def _charged(
    service: Service, principal: Principal, dataset_id: int, what: str, nbytes: int
) -> Iterator[None]:
    """Count bytes against the quota before they are kept, and no longer if they are refused."""
    with service.database.write() as session:
        service.database.alone(session, "uploads")
        require_bytes(session, principal.id, nbytes)
        row = UploadRow(
            dataset_id=dataset_id,
            shard=what,
            nbytes=nbytes,
            principal=principal.id,
            at=time.time(),
        )
        session.add(row)
        session.flush()
        session.expunge(row)
    try:
        yield
    except BaseException:
        with service.database.write() as session:
            if kept := session.get(UploadRow, row.id):
                session.delete(kept)
        raise


def _made(digest: str, manifest: Manifest, ref: str | None) -> MadeSnapshot:
    return view_of(MadeSnapshot, manifest, digest=digest, num_shards=len(manifest.shards), ref=ref)
