"""Several processes that answer on one socket: uvicorn's workers, with applications of ours."""

from __future__ import annotations

import functools
import gc
import http.client
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess

from evofeed.errors import EvofeedError
from evofeed.service.app import create_app
from evofeed.service.metrics import METRICS
from evofeed.service.processes.protocol import PunctualConfig
from evofeed.service.processes.server import base_url, listen
from evofeed.service.settings import ServiceSettings
from evofeed.service.state import Service

_log = logging.getLogger("evofeed.service")
_HEALTH_SECONDS: Final = 30  # a worker that says nothing for so long hangs
_AGAIN_SECONDS: Final = 2.0


def serve_workers(settings: ServiceSettings, announce: Callable[[str], None]) -> None:
    """Serve with `settings.workers` processes until SIGINT or SIGTERM; at once at the second.

    A worker that dies or hangs is replaced. Whoever connects meanwhile waits.

    Args:
        settings: how they run.
        announce: called with the base URL once a worker answers.

    Raises:
        ServiceError: the port is taken, or the service cannot start.
    """
    Service.start(settings).close()  # what is wrong is said once, here
    with (
        tempfile.TemporaryDirectory(prefix="evofeed-workers-") as folder,
        closing(listen(settings.host, settings.port)) as listener,
    ):
        counts = Path(folder) / METRICS
        counts.mkdir()
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(counts)
        listener.listen(2048)  # here already: nobody is refused while no worker is up
        ours = settings.with_changes(datasets={})  # they are registered
        config = PunctualConfig(
            functools.partial(_worker_app, ours, Path(folder)),
            settings.request_seconds,
            factory=True,
            loop="uvloop",
            workers=settings.workers,
            timeout_worker_healthcheck=_HEALTH_SECONDS,
        )
        workers = _Workers(config, [listener])
        threading.Thread(target=_say, args=(base_url(listener), announce), daemon=True).start()
        workers.run()


class _Workers(Multiprocess):
    def join_all(self) -> None:
        """Wait for the workers; a further signal does not."""
        for worker in self.processes:
            while worker.process.is_alive():
                worker.process.join(0.2)
                if self.signal_queue:
                    self.signal_queue.clear()
                    for other in self.processes:
                        other.process.kill()


def _worker_app(settings: ServiceSettings, folder: Path) -> FastAPI:
    """The application of one worker."""
    logging.basicConfig(level=settings.log_level, format="%(message)s")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        app = create_app(settings, folder)
        gc.freeze()  # all of it stays
        return app
    except EvofeedError as error:  # such as: the database starts again
        _log.error("a worker cannot start now; trying again: %s", error)
        time.sleep(_AGAIN_SECONDS)
        raise SystemExit(1) from None


def _end_with_parent() -> None:
    """Without the process that replaces workers there are to be none."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


def _say(url: str, announce: Callable[[str], None]) -> None:
    with closing(http.client.HTTPConnection(urlsplit(url).netloc)) as asking:
        asking.request("GET", "/healthz")  # the socket listens, so this waits for a worker
        asking.getresponse().read()
    announce(url)
