"""Moving refs: by compare-and-swap, within their policy, and entered into their history."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from evofeed.errors import RefConflict
from evofeed.service.access.auth import Principal
from evofeed.service.database.database import Database
from evofeed.service.database.tables import RefIntent
from evofeed.service.refs.history import enter, intend, known_ref, note_ref, withdraw
from evofeed.service.refs.policies import policy_of, require_movable, require_snapshot
from evofeed.service.snapshots.catalog import Catalog
from evofeed.store.inner import Ref


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
    forbid: Sequence[dict[str, Any]] = (),
    apart_from: Sequence[dict[str, Any]] = (),
) -> Ref:
    """Point a ref at a snapshot if it still points where the caller thinks, and its policy holds;
    or delete it.

    Args:
        catalog: the datasets.
        database: history and policies.
        dataset: its name.
        ref: the ref's name.
        digest: a snapshot that is there and complete; None: the ref is deleted.
        expect: digest it points at now; None, it does not exist yet.
        principal: who moves it.
        job_id: the job that made the snapshot, if one did.
        message: why, for the history.
        forbid: conditions for this move beside those of the policy.
        apart_from: likewise.

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
        require_snapshot(
            catalog,
            dataset,
            digest,
            [*policy.forbid, *forbid],
            [*policy.apart_from, *apart_from],
        )
    if known_ref(view, ref) is not None:
        now = note_ref(database, row.id, view, ref)  # so that the history knows where we begin
        if expect == digest == now.digest:
            return now
    intent = RefIntent(
        dataset_id=row.id,
        ref=ref,
        digest=digest or "",
        previous=expect,
        principal=principal.id,
        job_id=job_id,
        message=message,
        at=time.time(),
    )
    after = intend(database, intent)
    try:
        moved = view.move_ref(ref, digest, expect)
    except RefConflict:
        # A request that came twice, or a job that died once it had moved the ref: it is as asked.
        twice = digest is not None and (expect is not None or job_id is not None)
        if twice and known_ref(view, ref) == digest:
            found = note_ref(database, row.id, view, ref)
            withdraw(database, intent)
            return found
        withdraw(database, intent)
        raise
    except BaseException:
        if known_ref(view, ref) != digest:
            withdraw(database, intent)  # else it may have moved: the next reader enters it
        raise
    enter(database, intent, moved, after)
    return moved
