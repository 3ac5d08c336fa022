"""A dataset's folder behind the service's paths, on a server that can be told to misbehave."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections.abc import Callable
from pathlib import Path

Span = tuple[int, int]
Answer = tuple[int, bytes, int]
"""Status, body, and how many bytes its header promises."""


def soundly(key: str, span: Span | None, data: bytes) -> Answer:
    """As it should be."""
    return 206 if span else 200, data, len(data)


class FolderServer:
    """Serves a folder from construction to `stop`.

    Args:
        root: the dataset's folder.
        answer: from the key, the asked range and its bytes.

    Attributes:
        token: what a request must bear to be answered; empty: nothing.
    """

    def __init__(
        self, root: str, answer: Callable[[str, Span | None, bytes], Answer] = soundly
    ) -> None:
        self.root, self.answer, self.port = Path(root), answer, 0
        self.token = ""
        self._place = socket.socket()
        self.start()

    @property
    def uri(self) -> str:
        """The dataset's address."""
        return f"http://127.0.0.1:{self.port}/v1/datasets/d"

    def start(self) -> None:
        """Serve (again), where it was."""
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                owner._serve(self)

            def log_message(self, *_: object) -> None: ...

        self._place.close()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._connections: list[http.server.BaseHTTPRequestHandler] = []
        self._thread.start()

    def _serve(self, request: http.server.BaseHTTPRequestHandler) -> None:
        self._connections.append(request)
        if self.token and request.headers["Authorization"] != f"Bearer {self.token}":
            body = b'{"detail": "the token has expired"}'
            request.send_response(401)
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)
            return
        key = request.path.removeprefix("/v1/datasets/d/").replace("/index", "/index.arrow")
        path = self.root / key
        if key.startswith("snapshots/") and path.is_dir():
            path = path / "manifest.json"
        if not path.exists():
            request.send_error(404)
            return
        data, span = path.read_bytes(), None
        if asked := request.headers["Range"]:
            first, last = (int(at) for at in asked.removeprefix("bytes=").split("-"))
            data, span = data[first : last + 1], (first, last)
        status, body, promised = self.answer(key, span, data)
        request.send_response(status)
        request.send_header("Content-Length", str(promised))
        request.end_headers()
        request.wfile.write(body)
        request.close_connection = len(body) != promised

    def stop(self) -> None:
        """Go away, and break off the connections that are kept open."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._place.close()
        self._place = socket.socket()  # bound and deaf: nobody else is given the port meanwhile
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", self.port))
        for request in self._connections:
            with contextlib.suppress(OSError):  # the other side hung up before
                request.connection.shutdown(socket.SHUT_RDWR)  # `close` alone waits for its reader

    def __enter__(self) -> FolderServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._place.close()
