"""Refs: what must hold when they move, how they move, and where they have been.

A policy is checked by the service, for a PUT and for a job alike. The history is a chain without
gaps, whoever moves a ref: the store's compare-and-swap moves it; the database remembers. A mover
first writes down what it intends, then swaps, then enters the move and takes the intent away, in
one transaction. Whoever finds a ref ahead of its history meanwhile (a reader, another mover, the
next service after a crash) closes the gap with the intents that lead there; what no intent
explains was moved past the service, and is entered as moved by `store`.
"""

from __future__ import annotations

import datetime
import time
from typing import Any, Final, Literal

import pyarrow as pa
from pydantic import Field
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from evofeed.base.errors import DatasetMissing, RefConflict
from evofeed.service.access.auth import Principal
from evofeed.service.access.places import Uri
from evofeed.service.database.database import Database
from evofeed.service.database.tables import DatasetRow, RefIntent, RefMove, RefPolicy, record
from evofeed.service.names import Body, NewName
from evofeed.service.problems import Problem
from evofeed.service.snapshots import filters, rows
from evofeed.service.snapshots.catalog import Catalog
from evofeed.service.snapshots.snapshot import StoreView
from evofeed.store.inner import Clusters, Ref, index_schema, overlap

_LATE: Final = {"column": "release_date", "op": ">=", "value": "2021-10-01"}
_MOST: Final = 10_000
_STALE: Final = 3600.0  # seconds after which an intent whose mover died explains nothing


class Apart(Body):
    """A dataset that must share no sequence with what a ref points at."""

    dataset: NewName
    ref: NewName = "main"
    clusters: Uri | None = Field(
        None, description="file with a sequence cluster per line; null: only the same chain counts"
    )


class Policy(Body, json_schema_extra={"examples": [{"reviewer": "admin", "forbid": [_LATE]}]}):
    """What must hold whenever a ref moves, by whatever request or job."""

    protected: bool = Field(False, description="it does not move at all")
    reviewer: Literal["publish", "admin"] = Field(
        "publish", description="scope that whoever moves it needs"
    )
    forbid: list[dict[str, Any]] = Field(
        [], max_length=16, description="filters that no chain of its snapshot may pass"
    )
    apart_from: list[Apart] = Field(
        [], max_length=4, description="test sets that its snapshot must share no sequence with"
    )


def policy_of(database: Database, dataset_id: int, ref: str) -> Policy:
    """The policy of a ref; without one, only `publish` is asked for."""
    with database.read() as session:
        row = session.get(RefPolicy, (dataset_id, ref))
    return Policy.model_validate(row or {}, from_attributes=True)


def set_policy(
    database: Database, dataset: DatasetRow, ref: str, policy: Policy, principal: str
) -> None:
    """Replace the policy of a ref, which need not exist yet; a malformed filter is refused."""
    for where in policy.forbid:
        filters.check(index_schema(), where)
    with database.write() as session:
        database.alone(session, "policies")
        row = session.get(RefPolicy, (dataset.id, ref)) or RefPolicy(dataset_id=dataset.id, ref=ref)
        for name, value in policy.model_dump().items():
            setattr(row, name, value)
        row.updated_at, row.principal = time.time(), principal
        session.add(row)
        detail: dict[str, Any] = policy.model_dump(include={"protected", "reviewer"})
        detail |= {"forbid": len(policy.forbid), "apart_from": len(policy.apart_from)}
        record(session, principal, "ref.policy", f"{dataset.name}/{ref}", **detail)


def require_movable(policy: Policy, ref: str, principal: Principal) -> None:
    """Refuse whoever may not move a ref, before anything is read."""
    for needed in ("publish", policy.reviewer):
        if needed not in principal.scopes:
            hint = "have a token with that scope move it: PUT /v1/datasets/{name}/refs/{ref}"
            what = f"moving ref {ref!r} needs the scope {needed!r}"
            raise Problem(403, "forbidden", what, next=hint)
    if policy.protected:
        hint = "move another ref, or have an admin change its policy"
        what = f"ref {ref!r} is protected: it does not move"
        raise Problem(409, "ref_protected", what, next=hint)


def require_snapshot(catalog: Catalog, dataset: str, digest: str, policy: Policy) -> None:
    """Refuse a snapshot with forbidden chains, or with sequences of a test set.

    Raises:
        Problem: 404, no such dataset or snapshot; 409, a condition does not hold.
        InputError: a file of clusters cannot be read.
    """
    index = catalog.snapshot(dataset, digest).index
    for number, where in enumerate(policy.forbid):
        if found := len(forbidden := rows.matching(index, where)):
            names = ", ".join(index["chain_id"].take(pa.array(forbidden[:5])).to_pylist())
            more = ", ..." if found > 5 else ""
            what = f"{found} chains pass forbid[{number}]: {names}{more}"
            raise Problem(409, "forbidden_chains", what, next="leave them out and commit again")
    for apart in policy.apart_from:
        other = catalog.view(apart.dataset).ref(apart.ref).digest
        theirs = catalog.snapshot(apart.dataset, other).index["chain_id"].to_pylist()
        _require_apart(index["chain_id"].to_pylist(), theirs, apart)


def _require_apart(mine: list[str], theirs: list[str], apart: Apart) -> None:
    clusters = None if apart.clusters is None else Clusters(apart.clusters, closed=True)
    found = overlap(mine, theirs, clusters)
    if found.shared:
        pairs = ", ".join(f"{chain} ({its})" for chain, its in found.shared[:5])
        what = f"{len(found.shared)} chains share a sequence with {apart.dataset!r}: {pairs}"
    elif found.unclustered:
        names = ", ".join(found.unclustered[:5])
        what = f"{len(found.unclustered)} chains are in no cluster, so nobody can tell: {names}"
    else:
        return
    hint = "`evofeed snapshots overlap` lists them all; leave them out and commit again"
    raise Problem(409, "not_apart", what, next=hint)


def move_ref(
    catalog: Catalog,
    database: Database,
    *,
    dataset: str,
    ref: str,
    digest: str | None,
    expect: str | None,
    principal: Principal,
    job_id: str | None = None,
    message: str = "",
) -> Ref:
    """Point a ref at a snapshot (None: delete it) if it still points at `expect` (None: it is not
    there yet), and its policy holds.

    Raises:
        Problem: 403 and 409, the policy; 404, no such dataset or snapshot.
        RefConflict: the ref points elsewhere.
    """
    row = catalog.dataset(dataset)
    view = catalog.view(dataset)
    policy = policy_of(database, row.id, ref)
    require_movable(policy, ref, principal)
    # Never point at what is not there, nor at what may not be there.
    if digest is not None:
        require_snapshot(catalog, dataset, digest, policy)
    if known_ref(view, ref) is not None:
        now = note_ref(database, row.id, view, ref)  # so that the history knows where we begin
        if expect == digest == now.digest:
            return now
    intent = RefIntent(
        dataset_id=row.id, ref=ref, digest=digest or "", previous=expect, principal=principal.id,
        job_id=job_id, message=message, at=time.time(),
    )  # fmt: skip
    with database.write() as session:
        last = _last(session, row.id, ref)
        session.add(intent)
        after = last.id if last else 0
    try:
        moved = view.move_ref(ref, digest, expect)
    except RefConflict:
        # A request that came twice, or a job that died once it had moved the ref: it is as asked.
        twice = digest is not None and (expect is not None or job_id is not None)
        if twice and known_ref(view, ref) == digest:
            found = note_ref(database, row.id, view, ref)
            _withdraw(database, intent)
            return found
        _withdraw(database, intent)
        raise
    except BaseException:
        if known_ref(view, ref) != digest:
            _withdraw(database, intent)  # else it may have moved: the next reader enters it
        raise
    _enter(database, intent, moved, after)
    return moved


def _enter(database: Database, intent: RefIntent, moved: Ref, after: int) -> None:
    """Enter a move that was made, and whatever led to where it began."""
    with database.write() as session:
        dataset = _locked(session, intent.dataset_id)
        if dataset is None:  # removed meanwhile, with its history
            return
        kept = session.get(RefIntent, intent.id)
        if kept is None:  # somebody saw the ref there and entered it for us
            return
        last = _last(session, intent.dataset_id, intent.ref)
        step = (intent.previous, intent.digest)
        if last is not None and last.id > after and (last.previous, last.digest) == step:
            # Entered for another who wanted the same and lost; the swap says it was us.
            last.principal, last.job_id = intent.principal, intent.job_id
            last.message = intent.message
            session.delete(kept)
            return
        _catch_up(session, dataset, intent.ref, intent.previous, moved.updated_at)
        _add(session, dataset, kept, moved.updated_at)
        stale = time.time() - _STALE
        session.execute(delete(RefIntent).where(RefIntent.at < stale))


def _withdraw(database: Database, intent: RefIntent) -> None:
    """The move was not made."""
    with database.write() as session:
        session.execute(delete(RefIntent).where(RefIntent.id == intent.id))


def note_ref(database: Database, dataset_id: int, view: StoreView, ref: str) -> Ref:
    """Where a ref points; a move that is not in the history yet is entered.

    Raises:
        DatasetMissing: there is no such ref.
    """
    while True:
        with database.read() as session:
            before = _last(session, dataset_id, ref)
        found = view.ref(ref)
        if before is not None and before.digest == found.digest:
            return found
        with database.write() as session:
            dataset = _locked(session, dataset_id)
            if dataset is None:
                return found
            last = _last(session, dataset_id, ref)
            if (last and last.id) == (before and before.id):
                _catch_up(session, dataset, ref, found.digest, found.updated_at)
                return found
        # Others entered a move after we had looked: what we saw may be older than that.


class Notes:
    """Notes refs as they are read, and the database once for each place they are seen at."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last: dict[tuple[int, str], str] = {}

    def ref(self, dataset_id: int, view: StoreView, ref: str) -> Ref:
        """As `note_ref`, without the database where the ref is what it was."""
        found, key = view.ref(ref), (dataset_id, ref)
        if self._last.get(key) != found.digest:
            found = note_ref(self._database, dataset_id, view, ref)
            if len(self._last) >= _MOST:
                self._last.clear()
            self._last[key] = found.digest
        return found


def ref_history(
    database: Database, dataset_id: int, ref: str, limit: int, before: int | None = None
) -> list[RefMove]:
    """Moves of a ref, newest first; only those before a row, if given."""
    query = select(RefMove).where(RefMove.dataset_id == dataset_id, RefMove.ref == ref)
    if before is not None:
        query = query.where(RefMove.id < before)
    with database.read() as session:
        return list(session.scalars(query.order_by(RefMove.id.desc()).limit(limit)))


def known_ref(view: StoreView, ref: str) -> str | None:
    """Where a ref points, None if there is no such ref."""
    try:
        return view.ref(ref).digest
    except DatasetMissing:
        return None


def _locked(session: Session, dataset_id: int) -> DatasetRow | None:
    # PostgreSQL: one at a time writes a dataset's history. SQLite has one writer anyway.
    return session.get(DatasetRow, dataset_id, with_for_update=True)


def _last(session: Session, dataset_id: int, ref: str) -> RefMove | None:
    query = select(RefMove).where(RefMove.dataset_id == dataset_id, RefMove.ref == ref)
    return session.scalar(query.order_by(RefMove.id.desc()).limit(1))


def _catch_up(session: Session, dataset: DatasetRow, ref: str, digest: str | None, at: str) -> None:
    """Enter what led from the last move to `digest` (None: to there being no such ref)."""
    last = _last(session, dataset.id, ref)
    where = (last.digest or None) if last else None
    if where == digest:
        return
    query = select(RefIntent).where(RefIntent.dataset_id == dataset.id, RefIntent.ref == ref)
    intents = list(session.scalars(query.order_by(RefIntent.id)))
    path = _path(intents, where, digest)
    for intent in path:
        _add(session, dataset, intent, at)
    if not path:
        past_us = RefMove(dataset_id=dataset.id, ref=ref, digest=digest or "", previous=where)
        past_us.moved_at, past_us.principal, past_us.message = _unix(at), "store", ""
        session.add(past_us)
        session.flush()


def _path(intents: list[RefIntent], start: str | None, end: str | None) -> list[RefIntent]:
    """The fewest intents that lead from one digest to another; none if none do."""
    reached: dict[str | None, list[RefIntent]] = {start: []}
    front: list[str | None] = [start]
    while front and end not in reached:
        following: list[str | None] = []
        for intent in intents:
            to = intent.digest or None
            if intent.previous in front and to not in reached:
                reached[to] = [*reached[intent.previous], intent]
                following.append(to)
        front = following
    return reached.get(end, [])


def _add(session: Session, dataset: DatasetRow, intent: RefIntent, at: str) -> None:
    """The move of an intent, its line in the audit, and the intent gone: all or nothing."""
    same = ("dataset_id", "ref", "digest", "previous", "principal", "job_id", "message")
    session.add(RefMove(moved_at=_unix(at), **{name: getattr(intent, name) for name in same}))
    detail = {"digest": intent.digest, "previous": intent.previous}
    detail |= {"job": intent.job_id} if intent.job_id else {}
    subject = f"{dataset.name}/{intent.ref}"
    record(session, intent.principal, "ref.move", subject, **detail)
    session.delete(intent)
    session.flush()


def _unix(at: str) -> float:
    try:
        return datetime.datetime.fromisoformat(at).timestamp()
    except ValueError:
        return time.time()  # an empty or foreign time in the ref's file
