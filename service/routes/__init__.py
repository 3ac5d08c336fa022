"""The routes, one file per noun."""

from evofeed.service.routes import (
    datasets,
    health,
    jobs,
    refs,
    rows,
    snapshots,
    tickets,
    tokens,
)

# In the order in which paths are compared: what is asked for most comes first.
_NOUNS = (refs, snapshots, rows, datasets, health, jobs, tickets, tokens)
ROUTERS = tuple(noun.router for noun in _NOUNS)
