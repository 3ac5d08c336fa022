"""Plans: which rank reads which spans of which shards."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from fastapi import Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from evofeed.service.names import DatasetName, Digest
from evofeed.service.problems import Problem
from evofeed.service.ranges import immutable_response
from evofeed.service.routing import ServiceDep, make_router, scope
from evofeed.store.plan import MAX_WORLD_SIZE, plan_bytes, shard_plan

router = make_router("/v1/datasets/{name}", "plans")


class PlanQuery(BaseModel):
    """What to cut, for how many, and whose part to send."""

    model_config = ConfigDict(extra="forbid")

    world_size: int = Field(ge=1, le=MAX_WORLD_SIZE, description="ranks to cut for")
    rank: int | None = Field(None, ge=0, description="send this rank's part only")
    seed: int = Field(0, ge=0, lt=2**63, description="of the order")
    epoch: int = Field(0, ge=0, lt=2**63, description="from 0; each has its own order")


class RankPlan(BaseModel):
    """One rank's part."""

    rank: int
    chains: int
    nbytes: int
    cost: int
    spans: list[dict[str, Any]] = Field(description="shard, offset, nbytes, chains")


class PlanView(BaseModel):
    """A plan; its bytes are those of `evofeed.store.plan.plan_bytes`."""

    format: str
    version: int
    snapshot: str
    seed: int
    epoch: int
    world_size: int
    ranks: list[RankPlan]


@router.get("/snapshots/{digest}/plan", response_model=PlanView)
@scope("read")
def get_plan(
    request: Request,
    service: ServiceDep,
    name: DatasetName,
    digest: Digest,
    query: Annotated[PlanQuery, Query()],
) -> Response:
    """Shards cut into `world_size` pieces of equal cost: a pure function of the question."""
    if query.rank is not None and query.rank >= query.world_size:
        raise Problem(
            422,
            "bad_request",
            f"rank {query.rank} of a world of {query.world_size}",
            next=f"ranks are 0 to {query.world_size - 1}",
        )
    index = service.catalog.snapshot(name, digest).index
    plan = shard_plan(index, digest, query.world_size, seed=query.seed, epoch=query.epoch)
    if query.rank is not None:
        plan["ranks"] = [plan["ranks"][query.rank]]
    data = plan_bytes(plan)
    return immutable_response(
        request,
        etag=f'"{hashlib.sha256(data).hexdigest()}"',
        size=len(data),
        read=lambda offset, length: data[offset : offset + length],
        media_type="application/json",
    )
