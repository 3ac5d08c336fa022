"""Bytes that clients send: taken in piece by piece, beside the database, and checked before
anything of them reaches a dataset."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
from fastapi import Request
from starlette.requests import ClientDisconnect

from evofeed.service.half_uploads import folder_of
from evofeed.service.problems import Problem
from evofeed.service.state import Service

_PIECE: Final = 1 << 20  # bytes written and hashed at once
PATIENCE: Final = 20.0
"""Times the usual time that storing or committing may take."""


@dataclass(frozen=True, slots=True)
class Received:
    """A body that has come in whole.

    Attributes:
        path: where it is until the request has been answered.
        sha256: of its bytes.
        nbytes: how many.
    """

    path: Path
    sha256: str
    nbytes: int

    def buffer(self) -> pa.Buffer:
        """Its bytes, mapped: they take no memory."""
        with self.path.open("rb") as file:
            return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


@contextlib.asynccontextmanager
async def received(request: Request, service: Service, dataset: str) -> AsyncIterator[Received]:
    """A request's body as a file, which is gone at the end of the block.

    A process that is killed leaves it behind; `collect_stale` takes it away.

    Raises:
        Problem: 413, it is too large; 408, it did not come; 422, it is empty; 503, no room.
    """
    folder = folder_of(service.settings.home)
    path = folder / f"{uuid.uuid4().hex}.part"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("xb", buffering=0) as file:
            digest, nbytes = hashlib.sha256(), 0
            async for piece in _pieces(request):
                nbytes += len(piece)
                write = _Write(file, digest, piece)
                await service.work.run(write, dataset=dataset)
        if not nbytes:
            raise Problem(422, "empty_body", "the body is empty", next="send the file's bytes")
        yield Received(path, digest.hexdigest(), nbytes)
    except ClientDisconnect:
        raise Problem(408, "body_too_slow", "the body ended early", next="send it again") from None
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise Problem(
            503,
            "no_room",
            f"the body cannot be kept: {error.strerror or error}",
            next="free space below EVOFEED_HOME" if full else "see that EVOFEED_HOME can be used",
        ) from None
    finally:
        path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Write:
    file: BinaryIO
    digest: hashlib._Hash
    piece: bytes

    def __call__(self) -> None:
        self.digest.update(self.piece)
        view = memoryview(self.piece)
        while view:
            view = view[self.file.write(view) :]


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    held = bytearray()
    async for chunk in request.stream():
        held += chunk
        if len(held) >= _PIECE:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)
