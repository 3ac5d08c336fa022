"""The pages: made on the server, whole without a script, which only enlivens them."""

from evofeed.service.pages import (
    actions,
    admin,
    assemblies,
    assembly,
    chain,
    dataset,
    home,
    job,
    runs,
    session,
    snapshots,
)

ROUTERS = tuple(
    each.router
    for each in (
        home,
        session,
        actions,
        admin,
        snapshots,
        dataset,
        chain,
        assemblies,
        assembly,
        job,
        runs,
    )
)
