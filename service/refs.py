"""Refs: the conditions for moving them, their moves and their history.

The service checks a policy for a PUT and for a job alike. The history has no gaps: the store's
compare-and-swap moves a ref, and the database records it. A reader, another mover or the next
service after a crash that sees a ref ahead of its history records a move by `store`: by a writer
that bypassed the service, or by a mover that has not recorded its own yet. That mover then puts
its name there; so does a repeated request for a move whose answer was lost.
"""

from __future__ import annotations

import datetime
import time
from typing import Any, Final, Literal

import pyarrow as pa
from pydantic import Field
from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from evofeed.base.errors import DatasetMissing, RefConflict
from evofeed.service.access.auth import Principal
from evofeed.service.access.places import Uri
from evofeed.service.database.tables import DatasetRow, RefMove, RefPolicy, record
from evofeed.service.names import Body, NewName
from evofeed.service.problems import Problem
from evofeed.service.snapshots import filters, rows
from evofeed.service.snapshots.catalog import Catalog
from evofeed.store.inner import Clusters, Ref, index_schema, overlap

_LATE: Final = {"column": "release_date", "op": ">=", "value": "2021-10-01"}
_MOST: Final = 10_000
_STORE: Final = "store"  # the mover of a ref that bypassed the service


class Apart(Body):
    """A dataset that must not share a sequence with the ref's snapshot."""

    dataset: NewName
    ref: NewName = "main"
    clusters: Uri | None = Field(
        None, description="file with a sequence cluster per line; null: only the same chain counts"
    )


class Policy(Body, json_schema_extra={"examples": [{"reviewer": "admin", "forbid": [_LATE]}]}):
    """The conditions for moving a ref, for every request and job."""

    protected: bool = Field(False, description="it does not move at all")
    reviewer: Literal["publish", "admin"] = Field("publish", description="scope needed to move it")
    forbid: list[dict[str, Any]] = Field(
        [], max_length=16, description="filters that no chain of its snapshot may pass"
    )
    apart_from: list[Apart] = Field(
        [], max_length=4, description="test sets that must not share a sequence with its snapshot"
    )


def require_movable(policy: Policy, ref: str, principal: Principal) -> None:
    """Refuse a caller that may not move a ref, before anything is read."""
    for needed in ("publish", policy.reviewer):
        if needed not in principal.scopes:
            hint = "have a token with that scope move it: PUT /v1/datasets/{name}/refs/{ref}"
            message = f"moving ref {ref!r} needs the scope {needed!r}"
            raise Problem(403, "forbidden", message, next=hint)
    if policy.protected:
        hint = "move another ref, or have an admin change its policy"
        message = f"ref {ref!r} is protected: it does not move"
        raise Problem(409, "ref_protected", message, next=hint)


class Refs:
    """The refs of a service's datasets. Every method raises Problem 404 for an unknown dataset."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog, self._database = catalog, catalog.database
        self._noted: dict[tuple[int, str], str] = {}

    def policy(self, dataset: str, ref: str) -> Policy:
        """The policy of a ref; without one, only `publish` is asked for."""
        dataset_id = self._catalog.dataset(dataset).id
        with self._database.read() as session:
            row = session.get(RefPolicy, (dataset_id, ref))
        return Policy.model_validate(row or {}, from_attributes=True)

    def set_policy(self, dataset: str, ref: str, policy: Policy, principal: str) -> None:
        """Replace the policy of a ref, which need not exist yet; a malformed filter is refused."""
        dataset_id = self._catalog.dataset(dataset).id
        for where in policy.forbid:
            filters.check(index_schema(), where)
        with self._database.write() as session:
            self._database.alone(session, "policies")
            row = session.get(RefPolicy, (dataset_id, ref))
            row = row or RefPolicy(dataset_id=dataset_id, ref=ref)
            for name, value in policy.model_dump().items():
                setattr(row, name, value)
            row.updated_at, row.principal = time.time(), principal
            session.add(row)
            detail: dict[str, Any] = policy.model_dump(include={"protected", "reviewer"})
            detail |= {"forbid": len(policy.forbid), "apart_from": len(policy.apart_from)}
            record(session, principal, "ref.policy", f"{dataset}/{ref}", **detail)

    def digest(self, dataset: str, ref: str) -> str | None:
        """Where a ref points, None if there is no such ref."""
        try:
            return self._catalog.view(dataset).ref(ref).digest
        except DatasetMissing:
            return None

    def get(self, dataset: str, ref: str) -> Ref:
        """As `note`, without the database if the ref has not moved."""
        current = self._catalog.view(dataset).ref(ref)
        key = self._catalog.cached_dataset(dataset).id, ref
        if self._noted.get(key) != current.digest:
            current = self.note(dataset, ref)
            if len(self._noted) >= _MOST:
                self._noted.clear()
            self._noted[key] = current.digest
        return current

    def note(self, dataset: str, ref: str) -> Ref:
        """Where a ref points; a move that is not in the history yet is recorded.

        Raises:
            DatasetMissing: there is no such ref.
        """
        view, dataset_id = self._catalog.view(dataset), self._catalog.cached_dataset(dataset).id
        while True:
            with self._database.read() as session:
                before = _last(session, dataset_id, ref)
            current = view.ref(ref)
            if before is not None and before.digest == current.digest:
                return current
            with self._database.write() as session:
                if not _locked(session, dataset_id):
                    return current
                last = _last(session, dataset_id, ref)
                if (last and last.id) == (before and before.id):
                    _catch_up(session, dataset_id, ref, current.digest, current.updated_at)
                    return current
            # Another move was recorded after the read above, which may be older than it.

    def history(
        self, dataset: str, ref: str, limit: int, before: int | None = None
    ) -> list[RefMove]:
        """Moves of a ref, newest first; only those before a row, if given."""
        query = _moves(self._catalog.dataset(dataset).id, ref)
        if before is not None:
            query = query.where(RefMove.id < before)
        with self._database.read() as session:
            return list(session.scalars(query.order_by(RefMove.id.desc()).limit(limit)))

    def move(
        self,
        dataset: str,
        ref: str,
        digest: str | None,
        expect: str | None,
        principal: Principal,
        *,
        job_id: str | None = None,
        message: str = "",
    ) -> Ref:
        """Point a ref at a snapshot (None: delete it) if it still points at `expect` (None: it is
        not there yet), and its policy holds.

        Raises:
            Problem: 403 and 409, the policy; 404, no such dataset or snapshot.
            RefConflict: the ref points elsewhere.
        """
        dataset_id = self._catalog.dataset(dataset).id
        policy = self.policy(dataset, ref)
        require_movable(policy, ref, principal)
        # The snapshot must exist and satisfy the policy.
        if digest is not None:
            self._require_snapshot(dataset, digest, policy)
        if self.digest(dataset, ref) is not None:
            now = self.note(dataset, ref)  # the history must hold the current digest
            if expect == digest == now.digest:
                return now
        with self._database.read() as session:
            last = _last(session, dataset_id, ref)
        mine = RefMove(
            dataset_id=dataset_id, ref=ref, digest=digest or "", previous=expect,
            principal=principal.id, job_id=job_id, message=message,
        )  # fmt: skip
        try:
            moved = self._catalog.view(dataset).move_ref(ref, digest, expect)
        except RefConflict:
            # A repeated request, or a job that died after moving the ref: it is where it should be.
            twice = digest is not None and (expect is not None or job_id is not None)
            if not twice or self.digest(dataset, ref) != digest:
                raise
            if last and (last.principal, last.previous, last.digest) == (_STORE, expect, digest):
                self._enter(dataset, mine, last.id, None)
            return self.note(dataset, ref)
        self._enter(dataset, mine, last.id + 1 if last else 0, moved)
        return moved

    def _enter(self, dataset: str, mine: RefMove, since: int, moved: Ref | None) -> None:
        """Name the mover of a recorded move, from a row on; record one that was `moved`."""
        with self._database.write() as session:
            if not _locked(session, mine.dataset_id):  # removed meanwhile, with its history
                return
            same = (RefMove.previous == mine.previous, RefMove.digest == mine.digest)
            query = _moves(mine.dataset_id, mine.ref).where(RefMove.id >= since, *same)
            if row := session.scalar(query.order_by(RefMove.id).limit(1)):
                row.principal, row.job_id, row.message = mine.principal, mine.job_id, mine.message
            elif moved is not None:
                moved_at = moved.updated_at
                _catch_up(session, mine.dataset_id, mine.ref, mine.previous, moved_at)
                mine.moved_at = _unix(moved_at)
                session.add(mine)
            else:
                return
            detail = {"digest": mine.digest, "previous": mine.previous}
            detail |= {"job": mine.job_id} if mine.job_id else {}
            record(session, mine.principal, "ref.move", f"{dataset}/{mine.ref}", **detail)

    def _require_snapshot(self, dataset: str, digest: str, policy: Policy) -> None:
        """Refuse a snapshot with forbidden chains, or with sequences of a test set.

        Raises:
            Problem: 404, no such snapshot; 409, a condition does not hold.
            InputError: a file of clusters cannot be read.
        """
        index = self._catalog.snapshot(dataset, digest).index
        for number, where in enumerate(policy.forbid):
            if count := len(forbidden := rows.matching(index, where)):
                names = ", ".join(index["chain_id"].take(pa.array(forbidden[:5])).to_pylist())
                more = ", ..." if count > 5 else ""
                message = f"{count} chains pass forbid[{number}]: {names}{more}"
                hint = "leave them out and commit again"
                raise Problem(409, "forbidden_chains", message, next=hint)
        for apart in policy.apart_from:
            other = self._catalog.view(apart.dataset).ref(apart.ref).digest
            theirs = self._catalog.snapshot(apart.dataset, other).index["chain_id"].to_pylist()
            _require_apart(index["chain_id"].to_pylist(), theirs, apart)


def _require_apart(mine: list[str], theirs: list[str], apart: Apart) -> None:
    clusters = None if apart.clusters is None else Clusters(apart.clusters, closed=True)
    shared = overlap(mine, theirs, clusters)
    if shared.shared:
        pairs = ", ".join(f"{chain} ({its})" for chain, its in shared.shared[:5])
        message = f"{len(shared.shared)} chains share a sequence with {apart.dataset!r}: {pairs}"
    elif shared.unclustered:
        names = ", ".join(shared.unclustered[:5])
        count = len(shared.unclustered)
        message = f"{count} chains are in no cluster, so their similarity is unknown: {names}"
    else:
        return
    hint = "`evofeed snapshots overlap` lists them all; leave them out and commit again"
    raise Problem(409, "not_apart", message, next=hint)


def _locked(session: Session, dataset_id: int) -> bool:
    """True if the dataset exists; in PostgreSQL its row stays locked for writing its history."""
    return session.get(DatasetRow, dataset_id, with_for_update=True) is not None


def _moves(dataset_id: int, ref: str) -> Select[Any]:
    return select(RefMove).where(RefMove.dataset_id == dataset_id, RefMove.ref == ref)


def _last(session: Session, dataset_id: int, ref: str) -> RefMove | None:
    newest: RefMove | None = session.scalar(
        _moves(dataset_id, ref).order_by(RefMove.id.desc()).limit(1)
    )
    return newest


def _catch_up(
    session: Session, dataset_id: int, ref: str, digest: str | None, moved_at: str
) -> None:
    """Record the missing move from the last one to `digest` (None: the ref was deleted)."""
    last = _last(session, dataset_id, ref)
    where = (last.digest or None) if last else None
    if where != digest:
        move = RefMove(dataset_id=dataset_id, ref=ref, digest=digest or "", previous=where)
        move.moved_at, move.principal, move.message = _unix(moved_at), _STORE, ""
        session.add(move)
        session.flush()


def _unix(text: str) -> float:
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return time.time()  # an empty or malformed time in the ref's file
