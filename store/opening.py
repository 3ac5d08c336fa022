"""The storage behind a URI."""

from __future__ import annotations

import os

from evofeed.base.errors import StoreError
from evofeed.store.http import HttpStorage
from evofeed.store.s3 import S3Storage
from evofeed.store.storage import LocalStorage, Storage


def open_storage(uri: str | os.PathLike[str], *, token: str | None = None) -> Storage:
    """The storage behind a URI: a path, `file://`, `s3://` or `http(s)://`.

    Args:
        token: bearer token for a service; if None, the value of `EVOFEED_TOKEN` at each request.
    """
    text = os.fspath(uri)
    if text.startswith(("http://", "https://")):
        return HttpStorage(text, token)
    if text.startswith("s3://"):
        return S3Storage(text)
    if "://" in text and not text.startswith("file://"):
        raise StoreError("use a path, file://, s3:// or http(s)://", path=text)
    return LocalStorage(text.removeprefix("file://"))
