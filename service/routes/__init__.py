"""The routes, one file per noun."""

from evofeed.service.routes import (
    assemblies,
    chains,
    commits,
    datasets,
    health,
    job_events,
    jobs,
    plans,
    refs,
    runs,
    shards,
    snapshots,
    statistics,
    tickets,
    tokens,
    webhooks,
)

ROUTERS = tuple(
    each.router
    for each in (
        health,
        datasets,
        refs,
        snapshots,
        chains,
        assemblies,
        shards,
        commits,
        plans,
        statistics,
        jobs,
        job_events,
        runs,
        tickets,
        tokens,
        webhooks,
    )
)
