"""What must hold when a ref moves: checked by the service, for a PUT and for a job alike."""

from __future__ import annotations

import time
from typing import Any, Final, Literal

import pyarrow as pa
from pydantic import Field

from evofeed.service.access.auth import Principal
from evofeed.service.access.places import Uri
from evofeed.service.database.database import Database
from evofeed.service.database.tables import DatasetRow, RefPolicy, record
from evofeed.service.names import Body, NewName
from evofeed.service.problems import Problem
from evofeed.service.snapshots import filters, rows
from evofeed.service.snapshots.catalog import Catalog
from evofeed.store.inner import Clusters, index_schema, overlap

_LATE: Final = {"column": "release_date", "op": ">=", "value": "2021-10-01"}


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
    if row is None:
        return Policy.model_validate({})
    return Policy.model_validate({name: getattr(row, name) for name in Policy.model_fields})


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
