"""Locations that a client may name; the service reads them with its own rights.

A place is asked for twice: of its name when it is named, and of the file that is open when it is
used (`evofeed.base.within`), so that no link made in between, or inside of it, leads elsewhere.
Datasets are opened by `open_place`, inputs of jobs within `input_limits`, clusters by
`Clusters(closed=True)`; nothing else here opens what a client has named.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import StringConstraints

from evofeed.base.errors import StoreError
from evofeed.base.within import Limits, below
from evofeed.service.access.auth import Principal
from evofeed.service.problems import Problem
from evofeed.service.settings import ServiceSettings
from evofeed.store.inner import LocalStorage, Storage, open_storage

Uri = Annotated[
    str, StringConstraints(min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f\x7f]+$")
]


def canonical_place(uri: str) -> str:
    """The canonical form of a URI: links resolved, one spelling for each location.

    Raises:
        Problem: 422, it cannot be used by this service.
    """
    if uri.startswith("s3://"):
        bucket, *parts = uri.removeprefix("s3://").rstrip("/").split("/")
        if not bucket or any(part in ("", ".", "..") for part in parts):
            raise _no_place(uri, "a bucket, then names with single slashes between them")
        return uri.rstrip("/")
    plain = uri.removeprefix("file://")
    if "://" in plain or not plain.startswith("/"):
        # A service that reads another service could be used to bypass its rules.
        raise _no_place(uri, "an absolute path, file:///... or s3://BUCKET/...")
    if len(os.fsencode(plain)) > 3000 or any(len(os.fsencode(p)) > 255 for p in plain.split("/")):
        raise _no_place(uri, "a path whose names have at most 255 bytes")
    return os.path.realpath(plain)


def open_place(place: str) -> Storage:
    """The storage of a dataset's place, which `canonical_place` made.

    Should a link stand for a part of it now, nothing in it is opened.

    Raises:
        StoreError: `canonical_place` makes no such place, its row was changed.
    """
    if place.startswith("s3://"):
        return open_storage(place)
    if not place.startswith("/"):  # a relative path would be resolved in the service's folder
        raise StoreError("it is registered at neither an absolute path nor a bucket")
    return LocalStorage(place, closed=True)


def input_limits(settings: ServiceSettings, roots: Sequence[str] | None) -> Limits | None:
    """Folders whose files a job may open: the service's roots and its token's; None: any."""
    groups = [roots] if roots is not None else []
    if settings.input_roots or settings.auth_on:
        groups.append([canonical_root(root) for root in settings.input_roots])
    return groups or None


def canonical_root(root: str) -> str:
    """The canonical form of a root; `s3://` contains every bucket."""
    return root if root == "s3://" else canonical_place(root)


def require_root(
    settings: ServiceSettings,
    principal: Principal,
    uri: str,
    variable: Literal["EVOFEED_DATASET_ROOTS", "EVOFEED_INPUT_ROOTS"],
) -> str:
    """The canonical place of a URI, if the caller may use it.

    With neither tokens nor roots, any place will do; a token may have narrower roots of its own.

    Raises:
        Problem: 422, it cannot be used by this service; 403.
    """
    datasets = variable == "EVOFEED_DATASET_ROOTS"
    open_to_all = settings.dataset_roots if datasets else settings.input_roots
    place = canonical_place(uri)
    roots = [canonical_root(root) for root in open_to_all]
    if (open_to_all or settings.auth_on) and not _inside(uri, place, roots):
        raise _closed(uri, f"ask the service's operator to add its folder to {variable}")
    if principal.roots is not None and not _inside(uri, place, principal.roots):
        raise _closed(uri, "ask for a token whose roots include it; GET /v1/me shows yours")
    if datasets and principal.datasets is not None and principal.roots is None:
        raise _closed(uri, "a token for some datasets registers places only below roots of its own")
    return place


def _inside(uri: str, place: str, roots: Sequence[str]) -> bool:
    return ".." not in uri.split("/") and any(below(place, root) for root in roots)


def _no_place(uri: str, setting: str) -> Problem:
    return Problem(422, "bad_uri", f"{uri[:200]!r} is not allowed here", next=f"give {setting}")


def _closed(uri: str, what_next: str) -> Problem:
    message = f"{uri[:200]!r} is in no folder that may be named here"
    return Problem(403, "place_not_allowed", message, next=what_next)
