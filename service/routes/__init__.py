"""The routes, one file per noun."""

from evofeed.service.routes import (
    chains,
    dashboard,
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
        dashboard,
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
