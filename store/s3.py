"""A dataset in an S3-compatible bucket: `s3://bucket/prefix`, through obstore.

Credentials, region and endpoint come from the usual AWS variables. Refs move by
conditional PUT (`If-Match`, `If-None-Match`); `probe` checks once that the store
honours these conditions, because some ignore them.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any, Final

from evofeed.base.errors import AccessDenied, ShardMissing, StoreError
from evofeed.store.storage import Bytes, StoredObject

_TIMEOUT: Final = "EVOFEED_S3_TIMEOUT"
_client_pid = 0
"""Id of the process in which obstore started its threads."""


def timeout_seconds() -> float:
    """Seconds without a byte after which a request fails: `EVOFEED_S3_TIMEOUT`, 30 if not set.

    A request is retried within twice that time, and ends with `StoreError`.
    """
    text = os.environ.get(_TIMEOUT) or "30"
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) < 3600:
            return seconds
    raise StoreError(f"{_TIMEOUT}={text[:40]!r}: give seconds, more than 0 and less than 3600")


class S3Storage:
    """A bucket and a prefix in it."""

    def __init__(self, uri: str) -> None:
        self._uri = uri.rstrip("/")
        bucket, _, self.prefix = self._uri.removeprefix("s3://").partition("/")
        if not bucket:
            raise ValueError(f"{uri}: no bucket in this address")
        self.bucket = bucket
        self._lock = threading.Lock()
        self._pid = -1
        self._store: Any = None
        self._probed = False

    @property
    def uri(self) -> str:
        """The dataset's address, as given."""
        return self._uri

    def __reduce__(self) -> tuple[type[S3Storage], tuple[str]]:
        return S3Storage, (self._uri,)

    def store(self) -> Any:
        """obstore's client of this process.

        Raises:
            StoreError: the process was forked from one with a client: it would hang.
        """
        global _client_pid
        with self._lock:
            if self._pid != os.getpid():
                _client_pid = _client_pid or os.getpid()
                if _client_pid != os.getpid():
                    raise StoreError(
                        "S3's client does not survive a fork: start processes by 'spawn' "
                        "(multiprocessing_context of a DataLoader)",
                        path=self._uri,
                    )
                self._store, self._pid = self._connect(), os.getpid()
            return self._store

    def _connect(self) -> Any:
        try:
            from obstore.store import S3Store
        except ModuleNotFoundError:
            raise StoreError(
                "s3:// needs obstore: pip install 'evofeed[s3]'", path=self._uri
            ) from None
        endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
        limit = datetime.timedelta(seconds=timeout_seconds())
        options: Any = {"connect_timeout": limit, "read_timeout": limit}
        options["timeout"] = limit * 20  # a full answer may come slowly
        if endpoint.startswith("http://"):
            options["allow_http"] = True
        try:
            return S3Store(
                self.bucket,
                prefix=self.prefix or None,
                client_options=options,
                retry_config={"retry_timeout": limit * 2},
            )
        except ValueError as error:  # such as an empty name between two slashes
            reason = str(error).splitlines()[0]
            raise StoreError(f"no such address: {reason}", path=self._uri) from None

    def _path(self, key: str) -> str:
        return f"{self._uri}/{key}"

    @contextlib.contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        import obstore.exceptions as s3

        began = time.monotonic()
        try:
            yield
        except (FileNotFoundError, s3.NotFoundError) as error:
            self._check_bucket(error)
            raise ShardMissing("no such object", path=self._path(key)) from None
        except (s3.AlreadyExistsError, s3.PreconditionError):
            raise
        except (s3.BaseError, OSError) as error:
            self._check_bucket(error)
            reason, waited = str(error).strip().splitlines()[0], time.monotonic() - began
            if "169.254.169.254" in reason:  # address of the credentials of an AWS machine
                reason = (
                    "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
                    "AWS_SKIP_SIGNATURE=true for a public bucket"
                )
            elif "error sending request" in reason and waited >= timeout_seconds():
                reason = (
                    f"no answer within {waited:.0f} s: check AWS_ENDPOINT_URL and the network, "
                    f"or raise {_TIMEOUT}"
                )
            denied = isinstance(error, s3.PermissionDeniedError | s3.UnauthenticatedError)
            if denied or "<Code>ExpiredToken</Code>" in reason:  # AWS sends it with a 400
                reason += ": renew the AWS_ variables or the rights of these credentials"
                raise AccessDenied(f"S3: {reason}", path=self._path(key)) from None
            raise StoreError(f"S3: {reason}", path=self._path(key)) from None

    def _check_bucket(self, error: Exception) -> None:
        if "<Code>NoSuchBucket</Code>" in str(error):
            raise StoreError(
                f"no such bucket: create {self.bucket!r}, or check its name, AWS_REGION and "
                "AWS_ENDPOINT_URL",
                path=self._uri,
            ) from None

    def read(self, key: str) -> bytes:
        """All bytes of an object."""
        with self._errors(key):
            return bytes(self.store().get(key).bytes())

    def stored(self, key: str) -> StoredObject:
        """Size and age of an object."""
        with self._errors(key):
            attributes = self.store().head(key)
        return StoredObject(key, int(attributes["size"]), attributes["last_modified"].timestamp())

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Fill `out` by one ranged GET."""
        if not len(out):
            return
        with self._errors(key):
            data = memoryview(self.store().get_range(key, start=offset, length=len(out)))
        if len(data) != len(out):
            raise StoreError(
                f"asked for {len(out)} bytes at {offset}, got {len(data)}: truncated",
                path=self._path(key),
            )
        out[:] = data.cast("B")

    def put(self, key: str, data: Bytes) -> None:
        """One PUT (multipart above 64 MiB): readers see the full object or none."""
        with self._errors(key):
            self.store().put(key, data, use_multipart=len(data) > 64 << 20)

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        """Conditional PUT: if the object's tag is the old one, or if there is no object.

        Raises:
            StoreError: the store does not honour conditions.
        """
        self.probe()
        return self._conditional(key, old, new)

    def _conditional(self, key: str, old: bytes | None, new: bytes) -> bool:
        import obstore.exceptions as s3

        with self._errors(key):
            mode: Any = "create"
            if old is not None:
                try:
                    current = self.store().get(key)
                except (FileNotFoundError, s3.NotFoundError):
                    return False
                if bytes(current.bytes()) != old:
                    return False
                mode = {"e_tag": current.meta["e_tag"]}
            try:
                self.store().put(key, new, mode=mode, use_multipart=False)
            except (s3.AlreadyExistsError, s3.PreconditionError):
                return False
            return True

    def probe(self) -> None:
        """Check, once a process, that a second conditional PUT is refused.

        Raises:
            StoreError: it is not; two publishers could overwrite each other.
        """
        if self._probed:
            return
        key = f"probe/{uuid.uuid4().hex}"
        try:
            refused = self._conditional(key, None, b"a") and not self._conditional(key, None, b"b")
        finally:
            self.delete(key)
        if not refused:
            raise StoreError(
                "this store ignores If-None-Match, so refs could be lost: publish to a "
                "folder, or through a store with conditional writes",
                path=self._uri,
            )
        self._probed = True

    def files(self, prefix: str) -> Iterator[StoredObject]:
        """Objects below a prefix, in key order."""
        with self._errors(prefix):
            objects = [item for page in self.store().list(prefix) for item in page]
        for item in sorted(objects, key=lambda item: str(item["path"])):
            modified = item["last_modified"].timestamp()
            yield StoredObject(str(item["path"]), int(item["size"]), modified)

    def delete(self, key: str) -> None:
        """Remove an object; no error if it does not exist."""
        with contextlib.suppress(ShardMissing), self._errors(key):
            self.store().delete(key)

    def close(self) -> None:
        """Drop the client and its connections."""
        with self._lock:
            self._store, self._pid = None, -1
