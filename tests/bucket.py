"""A bucket in an S3 server of our own, for whatever keeps datasets in buckets."""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

_put, _one_at_a_time = S3Response.put_object, threading.Lock()


def _put_object(self: S3Response) -> Any:
    """A bucket compares and writes in one; moto's threads may all compare, then all write."""
    with _one_at_a_time:
        return _put(self)


S3Response.put_object = _put_object


class Bucket:
    """An empty bucket and the server it is in.

    Attributes:
        uri: `s3://` and its name.
        port: where the server listens; the same one when it comes back.
    """

    def __init__(self) -> None:
        name = f"data-{uuid.uuid4().hex}"
        self.uri, self.port, self._place = f"s3://{name}", 0, socket.socket()
        self.come_back()
        _, self.port = self._server.get_host_and_port()
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        self._client.create_bucket(Bucket=name)

    def fill(self, folder: Path) -> str:
        """Put a dataset's files below `set/`; the dataset's address there."""
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                key = f"set/{path.relative_to(folder).as_posix()}"
                self._client.put_object(Bucket=self.uri[5:], Key=key, Body=path.read_bytes())
        return f"{self.uri}/set"

    def go_away(self) -> None:
        """Stop the server; what was stored stays in this process's memory."""
        self._server.stop()
        self._place = socket.socket()  # bound and deaf: nobody else is given the port meanwhile
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", self.port))

    def come_back(self) -> None:
        """Start it again."""
        self._place.close()
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port, verbose=False)
        self._server.start()

    def close(self) -> None:
        """End it all."""
        self._client.close()
        self._server.stop()
        self._place.close()


@contextmanager
def local_bucket() -> Iterator[Bucket]:
    """An empty bucket that the usual AWS variables lead to, in this process and its children."""
    bucket = Bucket()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{bucket.port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_REGION", "us-east-1")
        try:
            yield bucket
        finally:
            bucket.close()
