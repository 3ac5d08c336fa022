"""Refs: names that point at snapshots, moved by compare-and-swap, with a history."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from sqlalchemy import select

from evofeed.errors import RefConflict
from evofeed.service import chains
from evofeed.service.audit import record
from evofeed.service.catalog import Catalog
from evofeed.service.database import Database
from evofeed.service.problems import Problem
from evofeed.service.tables import DatasetRow, RefMove
from evofeed.store.inner import Clusters, Ref, overlap


def move_ref(
    catalog: Catalog,
    database: Database,
    *,
    dataset: str,
    ref: str,
    digest: str,
    expect: str | None,
    principal: str,
    forbid: Sequence[dict[str, Any]] = (),
) -> Ref:
    """Point a ref at a snapshot if it still stands where the caller thinks.

    The store's own compare-and-swap decides; then the move is written to the
    history and the audit.

    Args:
        catalog: the datasets.
        database: the history.
        dataset: its name.
        ref: the ref's name.
        digest: a snapshot that is there and complete.
        expect: digest it points at now; None, it does not exist yet.
        principal: who moves it.
        forbid: filters that no chain of the snapshot may pass, such as a release date
            behind the cut-off of the test set.

    Raises:
        Problem: 404, no such dataset or snapshot; 409, a forbidden chain; 412, the ref
            stands elsewhere.
    """
    row = catalog.dataset(dataset)
    snapshot = catalog.snapshot(dataset, digest)  # never point at what is not there
    for number, where in enumerate(forbid):
        _require_none(snapshot.index, where, number)
    view = catalog.view(dataset)
    try:
        moved = view.move_ref(ref, digest, expect)
    except RefConflict as error:
        now = next((r for r in view.refs() if r.name == ref), None)
        raise Problem(
            412,
            "ref_moved",
            error.message,
            next="read the ref again and retry with its ETag in If-Match",
            headers={"ETag": f'"{now.digest}"'} if now else {},
        ) from None
    if expect == digest:  # nothing moved
        return moved
    with database.write() as session:
        session.add(
            RefMove(
                dataset_id=row.id,
                ref=ref,
                digest=digest,
                previous=expect,
                moved_at=time.time(),
                principal=principal,
            )
        )
        record(session, principal, "ref.move", f"{dataset}/{ref}", to=digest, previous=expect)
    return moved


def _require_none(index: pa.Table, where: dict[str, Any], number: int) -> None:
    found = chains.count(index, where)
    if found:
        first = chains.page(index, where, ["chain_id"], 0, 5).rows
        names = ", ".join(row["chain_id"] for row in first)
        raise Problem(
            409,
            "forbidden_chains",
            f"{found} chains pass forbid[{number}]: {names}{', ...' if found > 5 else ''}",
            next="leave them out and commit again, or move the ref without this condition",
        )


def require_apart(
    catalog: Catalog, one: tuple[str, str], other: tuple[str, str], clusters: str | None
) -> None:
    """Refuse a snapshot that shares sequences with another, such as the test set.

    Args:
        catalog: the datasets.
        one: dataset and digest of the snapshot.
        other: of what it must be apart from.
        clusters: file with a sequence cluster per line; None, only the same chain counts.

    Raises:
        Problem: 404, no such snapshot; 409, they share chains or clusters, or a chain is in
            no cluster, so that nobody can tell.
        InputError: the clusters cannot be read.
    """
    mine, theirs = (
        catalog.snapshot(*which).index["chain_id"].to_pylist() for which in (one, other)
    )
    found = overlap(mine, theirs, Clusters(clusters) if clusters is not None else None)
    if found.shared:
        pairs = ", ".join(f"{chain} ({its})" for chain, its in found.shared[:5])
        what = f"{len(found.shared)} chains share a sequence with {other[0]!r}: {pairs}"
    elif found.unclustered:
        names = ", ".join(found.unclustered[:5])
        what = f"{len(found.unclustered)} chains are in no cluster, so nobody can tell: {names}"
    else:
        return
    raise Problem(
        409,
        "not_apart",
        what,
        next="`evofeed snapshots overlap` lists them all; leave them out and commit again",
    )


def note_ref(database: Database, dataset_id: int, ref: Ref) -> None:
    """Write a move the service did not make itself into the history.

    A `DatasetWriter` moves refs in the store without asking us; we learn of it
    when somebody reads the ref.
    """
    query = (
        select(RefMove)
        .where(RefMove.dataset_id == dataset_id, RefMove.ref == ref.name)
        .order_by(RefMove.id.desc())
        .limit(1)
    )
    with database.read() as session:
        last = session.scalar(query)
    if last is not None and last.digest == ref.digest:
        return
    with database.write() as session:
        # One at a time: PostgreSQL would let two readers note the same move twice.
        session.get(DatasetRow, dataset_id, with_for_update=True)
        last = session.scalar(query)
        if last is None or last.digest != ref.digest:
            session.add(
                RefMove(
                    dataset_id=dataset_id,
                    ref=ref.name,
                    digest=ref.digest,
                    previous=last.digest if last else None,
                    moved_at=time.time(),
                    principal="store",
                )
            )


def ref_history(database: Database, dataset_id: int, ref: str, limit: int) -> list[RefMove]:
    """Moves of a ref, newest first."""
    query = (
        select(RefMove)
        .where(RefMove.dataset_id == dataset_id, RefMove.ref == ref)
        .order_by(RefMove.id.desc())
        .limit(limit)
    )
    with database.read() as session:
        return list(session.scalars(query))
