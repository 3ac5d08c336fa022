"""What must hold when a ref moves: checked by the service, for a PUT and for a job alike."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa

from evofeed.service.access.auth import Principal
from evofeed.service.database.database import Database
from evofeed.service.database.tables import DatasetRow, RefPolicy, record
from evofeed.service.filters import evaluator as filters
from evofeed.service.problems import Problem
from evofeed.service.snapshots import rows
from evofeed.service.snapshots.catalog import Catalog
from evofeed.store.inner import Clusters, index_schema, overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The conditions of one ref."""

    protected: bool = False
    """It does not move at all until this is taken away."""
    reviewer: str = "publish"
    """Scope that whoever moves it needs."""
    forbid: Sequence[dict[str, Any]] = field(default_factory=list)
    """Filters that no chain of its snapshot may pass."""
    apart_from: Sequence[dict[str, Any]] = field(default_factory=list)
    """Datasets its snapshot must share no sequence with: `dataset`, `ref`, `clusters`."""


def policy_of(database: Database, dataset_id: int, ref: str) -> Policy:
    """The policy of a ref; without one, only `publish` is asked for."""
    with database.read() as session:
        row = session.get(RefPolicy, (dataset_id, ref))
    names = [field.name for field in fields(Policy)]
    return Policy() if row is None else Policy(**{name: getattr(row, name) for name in names})


def set_policy(
    database: Database, dataset: DatasetRow, ref: str, policy: Policy, principal: str
) -> None:
    """Replace the policy of a ref, which need not exist yet."""
    with database.write() as session:
        database.alone(session, "policies")
        row = session.get(RefPolicy, (dataset.id, ref))
        if row is None:
            row = RefPolicy(dataset_id=dataset.id, ref=ref)
            session.add(row)
        row.protected, row.reviewer = policy.protected, policy.reviewer
        row.forbid, row.apart_from = list(policy.forbid), list(policy.apart_from)
        row.updated_at, row.principal = time.time(), principal
        detail = {"protected": policy.protected, "reviewer": policy.reviewer}
        detail |= {"forbid": len(policy.forbid), "apart_from": len(policy.apart_from)}
        record(session, principal, "ref.policy", f"{dataset.name}/{ref}", **detail)


def require_movable(policy: Policy, ref: str, principal: Principal) -> None:
    """Refuse whoever may not move a ref, before anything is read.

    Raises:
        Problem: 403, it lacks the scope; 409, the ref is protected.
    """
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
        _require_none(index, where, number)
    for apart in policy.apart_from:
        other = catalog.view(apart["dataset"]).ref(apart["ref"]).digest
        _require_apart(catalog, (dataset, digest), (apart["dataset"], other), apart["clusters"])


def require_filters(forbid: Sequence[dict[str, Any]]) -> None:
    """Refuse filters that are malformed, whatever columns a snapshot has.

    Raises:
        Problem: 422.
    """
    for where in forbid:
        filters.check(index_schema(), where)


def _require_none(index: pa.Table, where: dict[str, Any], number: int) -> None:
    found = len(forbidden := rows.matching(index, where))
    if found:
        names = ", ".join(index["chain_id"].take(pa.array(forbidden[:5])).to_pylist())
        what = f"{found} chains pass forbid[{number}]: {names}{', ...' if found > 5 else ''}"
        hint = "leave them out and commit again"
        raise Problem(409, "forbidden_chains", what, next=hint)


def _require_apart(
    catalog: Catalog, one: tuple[str, str], other: tuple[str, str], clusters: str | None
) -> None:
    mine, theirs = (
        catalog.snapshot(*which).index["chain_id"].to_pylist() for which in (one, other)
    )
    found = overlap(mine, theirs, Clusters(clusters, closed=True) if clusters is not None else None)
    if found.shared:
        pairs = ", ".join(f"{chain} ({its})" for chain, its in found.shared[:5])
        what = f"{len(found.shared)} chains share a sequence with {other[0]!r}: {pairs}"
    elif found.unclustered:
        names = ", ".join(found.unclustered[:5])
        what = f"{len(found.unclustered)} chains are in no cluster, so nobody can tell: {names}"
    else:
        return
    hint = "`evofeed snapshots overlap` lists them all; leave them out and commit again"
    raise Problem(409, "not_apart", what, next=hint)
