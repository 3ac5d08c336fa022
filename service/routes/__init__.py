"""The routes, one file per noun."""

from evofeed.service.routes import (
    chains,
    datasets,
    health,
    jobs,
    plans,
    refs,
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
        shards,
        plans,
        statistics,
        jobs,
        tickets,
        tokens,
        webhooks,
    )
)
