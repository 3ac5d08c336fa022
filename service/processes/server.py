"""Running the application: in the foreground, or beside a test, a demo or a notebook."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import uvicorn
import uvloop
from pydantic import SecretStr

from evofeed.errors import ServiceError
from evofeed.service.app import create_app
from evofeed.service.processes.protocol import PunctualConfig
from evofeed.service.settings import ServiceSettings
from evofeed.service.timings import USUAL, Timings

_START_SECONDS = 30.0


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 picks a free one.

    Raises:
        ServiceError: the port is taken, or the address is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named: asyncio turns Nagle's algorithm off only then, and with it on
    # each small answer waits 40 ms for the client's delayed acknowledgement (measured).
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ServiceError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; "
            "choose another --port or --host"
        ) from None
    return listener


def base_url(listener: socket.socket) -> str:
    """The URL a client on this machine uses for a bound socket."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def serving(
    what: ServiceSettings | Mapping[str, str | Path], timings: Timings = USUAL
) -> Iterator[str]:
    """A running service, as long as the block lasts.

    It runs in a thread of this process, on a free loopback port unless the
    settings name one, and stops before the block is left. Given datasets alone,
    its database is a temporary SQLite file, and all it lets anybody do is read.

        with serving({"demo": "/data/demo"}) as url:
            dataset = Dataset.open(f"{url}/v1/datasets/demo")

    Args:
        what: settings, or datasets to serve, name to URI.
        timings: how long its parts wait.

    Yields:
        The base URL, such as `http://127.0.0.1:40123`.

    Raises:
        ServiceError: it did not start.
    """
    with ExitStack() as stack:
        if not isinstance(what, ServiceSettings):
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="evofeed-serve-"))
            what = ServiceSettings(
                home=Path(home),
                database_url=SecretStr(""),
                datasets={name: str(uri) for name, uri in what.items()},
                host="127.0.0.1",
                port=0,
                auth="read",  # it is open to every user of this machine
            )
        listener = stack.enter_context(closing(listen(what.host, what.port)))
        app = create_app(what, timings=timings)
        server = uvicorn.Server(PunctualConfig(app, what.request_seconds))
        thread = _start(server, listener)
        try:
            yield base_url(listener)
        finally:
            server.should_exit = True
            thread.join()


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
