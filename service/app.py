"""The application: settings in, FastAPI out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from evofeed import __version__
from evofeed.service.pages import ROUTERS as PAGES
from evofeed.service.pages.page import problem_page
from evofeed.service.problems import install_problems
from evofeed.service.requests.edge import Edge
from evofeed.service.requests.openapi import describe_api
from evofeed.service.routes import ROUTERS
from evofeed.service.settings import ServiceSettings
from evofeed.service.state import Service

_ABOUT = (
    "Snapshots, manifests, chains, plans and jobs of evofeed datasets. Immutable things carry "
    "an ETag and never change; refs move by compare-and-swap; errors are problem JSON."
)


def create_app(settings: ServiceSettings | None = None) -> FastAPI:
    """The service as an ASGI application.

    Raises:
        ServiceError: the database does not answer or needs migrating.
    """
    service = Service(settings or ServiceSettings())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Service]]:
        service.leader.start()
        yield {"service": service}
        service.close()

    app = FastAPI(
        title="evofeed",
        version=__version__,
        description=_ABOUT,
        lifespan=lifespan,
        openapi_url=None,  # served by a scoped route of ours
        docs_url=None,  # FastAPI's pages load scripts from a CDN; the dashboard has its own
        redoc_url=None,
        separate_input_output_schemas=False,
        redirect_slashes=False,  # a path has one spelling, and nothing undocumented answers
        # Not included as routers, each of which FastAPI would match twice: 60 us a request.
        routes=[route for router in (*ROUTERS, *PAGES) for route in router.routes],
    )
    app.state.service = service
    install_problems(app, problem_page)
    describe_api(app)
    app.add_middleware(Edge, settings=service.settings, metrics=service.metrics)
    if proxies := service.settings.trusted_proxies:
        # nginx writes X-Forwarded-For; of nobody who is not named here is anything believed.
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(proxies))
    return app
