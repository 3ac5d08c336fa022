"""The application, and running it: in the foreground, or within a test, a demo or a notebook."""

from __future__ import annotations

import asyncio
import errno
import logging
import multiprocessing
import multiprocessing.connection
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import uvicorn
import uvloop
from fastapi import FastAPI
from pydantic import SecretStr
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.supervisors import Multiprocess

from evofeed import __version__
from evofeed.base.errors import EvofeedError, ServiceError
from evofeed.base.files import scratch_folder
from evofeed.service.pages import ROUTERS as PAGES
from evofeed.service.pages.page import problem_page
from evofeed.service.problems import describe_api, install_problems
from evofeed.service.requests.edge import Edge
from evofeed.service.routes import ROUTERS
from evofeed.service.settings import ServiceSettings, load_settings
from evofeed.service.state import Service

_log = logging.getLogger("evofeed.service")
_AGAIN_SECONDS: Final = 2.0
_START_SECONDS: Final = 30.0
_HELD_SECONDS: Final = 3.0
"""A port may be that of a service that was killed, whose workers are about to notice."""
_WORKER_SECONDS: Final = 30  # a worker without a heartbeat for so long is replaced


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named: asyncio turns Nagle's algorithm off only then, and with it on
    # each small answer waits 40 ms for the client's delayed acknowledgement (measured).
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    end = time.monotonic() + _HELD_SECONDS
    while True:
        try:
            listener.bind((host, port))
            listener.listen(2048)  # clients that connect before a worker answers wait
            return listener
        except OSError as error:
            if time.monotonic() < end and error.errno == errno.EADDRINUSE:
                time.sleep(0.1)
                continue
            listener.close()
            raise ServiceError(
                f"cannot listen on {host}:{port}: {error.strerror or error}; "
                "choose another --port or --host"
            ) from None


def base_url(listener: socket.socket) -> str:
    """The URL a client on this machine uses for a bound socket."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def serving(served: ServiceSettings | Mapping[str, str | Path]) -> Iterator[str]:
    """A running service, as long as the block lasts.

    It runs in a thread of this process, on a free loopback port unless the
    settings name one, and stops before the block is left. Given datasets alone,
    its database is a temporary SQLite file, and it is read-only.

        with serving({"demo": "/data/demo"}) as url:
            dataset = Dataset.open(f"{url}/v1/datasets/demo")

    Args:
        served: settings, or datasets to serve, name to URI.

    Yields:
        The base URL, such as `http://127.0.0.1:40123`.

    Raises:
        ServiceError: it did not start.
    """
    with ExitStack() as stack:
        if not isinstance(served, ServiceSettings):
            served = ServiceSettings(
                home=stack.enter_context(scratch_folder("evofeed-serve-")),
                database_url=SecretStr(""),
                datasets={name: str(uri) for name, uri in served.items()},
                host="127.0.0.1",
                port=0,
                auth="read",  # it is open to every user of this machine
            )
        listener = stack.enter_context(closing(listen(served.host, served.port)))
        app = create_app(served)
        server = uvicorn.Server(_config(app))
        thread = _start(server, listener)
        try:
            yield base_url(listener)
        finally:
            app.state.service.stopping.set()
            server.should_exit = True
            thread.join()


def serve_workers(settings: ServiceSettings, announce: Callable[[str], None]) -> None:
    """Serve with `settings.workers` processes, uvicorn's, until SIGINT or SIGTERM.

    A worker that dies or hangs is replaced; clients that connect meanwhile wait.

    Raises:
        ServiceError: the port is taken, or the service cannot start.
    """
    Service(settings).close()  # what is wrong is said once, here
    with (
        scratch_folder("evofeed-metrics-") as counts,
        closing(listen(settings.host, settings.port)) as listener,
    ):
        os.environ |= {  # what the command line has changed, for the workers
            "PROMETHEUS_MULTIPROC_DIR": str(counts),
            "EVOFEED_HOST": settings.host,
            "EVOFEED_AUTH": settings.auth,
            "EVOFEED_WORKERS": str(settings.workers),
            "EVOFEED_DATASETS": "{}",  # they are registered
        }
        config = _config(
            "evofeed.service.server:worker_app",
            factory=True,
            workers=settings.workers,
            timeout_worker_healthcheck=_WORKER_SECONDS,
        )
        announce(base_url(listener))
        Multiprocess(config, [listener]).run()


def worker_app() -> FastAPI:
    """The application of one worker; it ends with the process that replaces workers."""
    settings = load_settings()
    logging.basicConfig(level=settings.log_level, format="%(message)s")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        return create_app(settings)
    except EvofeedError as error:  # such as: the database starts again
        _log.error("a worker cannot start now; trying again: %s", error)
        time.sleep(_AGAIN_SECONDS)
        raise SystemExit(1) from None


def _config(app: Any, **more: Any) -> uvicorn.Config:
    logging.getLogger("uvicorn.access").disabled = True
    return uvicorn.Config(
        app,
        http="httptools",
        loop="uvloop",
        access_log=False,  # it would log query strings; `Edge` writes the access lines
        log_config=None,
        proxy_headers=False,  # `Edge` believes the proxies that settings name
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
        ws="none",
        **more,
    )


def _start(server: uvicorn.Server, listener: socket.socket) -> threading.Thread:
    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.serve(sockets=[listener]))

    thread = threading.Thread(target=run, name="evofeed-serve", daemon=True)
    thread.start()
    deadline = time.monotonic() + _START_SECONDS
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            server.should_exit = True
            raise ServiceError("the service did not start; see the log above")
        time.sleep(0.005)
    return thread


def _end_with_parent() -> None:
    """At once: the socket is needed for the next start."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


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
        openapi_url=None,  # served by a route with a scope
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
        # nginx writes X-Forwarded-For; only the proxies named here are trusted.
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(proxies))
    return app
