"""The routes, one file per noun."""

from evofeed.service.routes import (
    datasets,
    health,
    jobs,
    plans,
    refs,
    rows,
    shards,
    snapshots,
    tickets,
    tokens,
)

# In the order in which paths are compared: what is asked for most comes first.
_NOUNS = (refs, snapshots, rows, shards, datasets, health, plans, jobs, tickets, tokens)
ROUTERS = tuple(noun.router for noun in _NOUNS)
