"""Plans: which rank reads which chains, by the loader's own arithmetic."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from evofeed import loader  # its names load when they are used: no start waits for them
from evofeed.base.errors import LoaderError
from evofeed.service.names import DatasetName, Digest
from evofeed.service.problems import Problem
from evofeed.service.requests.ranges import NOT_MODIFIED, immutable_json
from evofeed.service.requests.routing import Context, make_router, scope
from evofeed.service.state import Service

router = make_router("/v1/datasets/{name}", "plans")

MAX_WORLD_SIZE: Final = 65_536
MAX_SAMPLES: Final = 10_000
"""Samples in one answer."""


class PlanQuery(BaseModel):
    """Whose batches to list: the arguments of a `FeatureLoader`, and how many."""

    model_config = ConfigDict(extra="forbid")

    world_size: int = Field(ge=1, le=MAX_WORLD_SIZE, description="ranks that load together")
    rank: int | None = Field(None, ge=0, description="this rank only")
    seed: int = Field(0, ge=0, lt=2**63, description="of the run")
    epoch: int = Field(0, ge=0, lt=2**63, description="from 0; each has its own order")
    start: int = Field(0, ge=0, lt=2**63, description="batch of the epoch to begin with")
    batches: int = Field(1, ge=1, le=MAX_SAMPLES, description="of each rank")
    preset: str = Field("initial_training", max_length=64, description="of `LoaderConfig`")
    batch_size: int = Field(1, ge=1, le=MAX_SAMPLES, description="samples in a batch of a rank")
    global_batch_size: int | None = Field(
        None, ge=1, lt=2**31, description="samples of an optimiser step; null: one batch a rank"
    )

    @property
    def num_samples(self) -> int:
        """Samples in the answer."""
        return (self.world_size if self.rank is None else 1) * self.batches * self.batch_size


class SampleView(BaseModel):
    """One sample of one batch of one rank."""

    epoch: int
    batch: int
    step: int = Field(description="optimiser step within the epoch")
    rank: int
    position: int = Field(description="the sample's number in the epoch")
    chain_id: str
    recycling_iters: int
    shard: str = Field(description="file below `shards/`; the chain's bytes are at `offset`")
    offset: int
    nbytes: int


class PlanView(BaseModel):
    """What `evofeed plan --json` lists, for one snapshot."""

    snapshot: str
    samples: list[SampleView] = Field(description="by epoch, batch, rank and position")


@router.get("/snapshots/{digest}/plan", response_model=PlanView, responses=NOT_MODIFIED)
@scope("read", heavy=True)
def get_plan(
    ctx: Context, name: DatasetName, digest: Digest, query: Annotated[PlanQuery, Query()]
) -> Response:
    """The batches that a `FeatureLoader` of these arguments takes: which rank reads what."""
    if query.rank is not None and query.rank >= query.world_size:
        what = f"rank {query.rank} of a world of {query.world_size}"
        raise Problem(422, "bad_request", what, next=f"ranks are 0 to {query.world_size - 1}")
    if query.num_samples > MAX_SAMPLES:
        what = f"{query.num_samples} samples in one answer; at most {MAX_SAMPLES}"
        hint = "ask for one rank, or for fewer batches at a time (start, batches)"
        raise Problem(422, "bad_request", what, next=hint)
    plan = {"snapshot": digest, "samples": _samples(ctx.service, name, digest, query)}
    return immutable_json(ctx.request, plan)


def _samples(service: Service, name: str, digest: str, query: PlanQuery) -> list[dict[str, Any]]:
    sizes = {"batch_size": query.batch_size, "global_batch_size": query.global_batch_size}
    asked = query.model_dump(include={"rank", "epoch", "start", "batches"})
    try:
        config = loader.LoaderConfig.preset(query.preset, **sizes)
        run = service.catalog.run_plan(
            name, digest, config, world_size=query.world_size, seed=query.seed
        )
        return run.samples(**asked)
    except (ValueError, LoaderError) as error:
        raise Problem(422, "bad_request", str(error), next="see `evofeed plan --help`") from None
