"""Places a client may name: the service reads there with its own rights."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import StringConstraints

from evofeed.service.access.auth import Principal
from evofeed.service.problems import Problem
from evofeed.service.settings import ServiceSettings

Uri = Annotated[
    str, StringConstraints(min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f\x7f]+$")
]


def canonical_place(uri: str) -> str:
    """Where a URI leads: links followed, one spelling for each place.

    Raises:
        Problem: 422, it is no place of ours.
    """
    if uri.startswith("s3://"):
        bucket, *parts = uri.removeprefix("s3://").rstrip("/").split("/")
        if not bucket or any(part in ("", ".", "..") for part in parts):
            raise _no_place(uri, "a bucket, then names with single slashes between them")
        return uri.rstrip("/")
    plain = uri.removeprefix("file://")
    if "://" in plain or not plain.startswith("/"):
        # A service on a service would only add a way round its own rules.
        raise _no_place(uri, "an absolute path, file:///... or s3://BUCKET/...")
    if len(os.fsencode(plain)) > 3000 or any(len(os.fsencode(p)) > 255 for p in plain.split("/")):
        raise _no_place(uri, "a path whose names have at most 255 bytes")
    return os.path.realpath(plain)


def require_root(
    settings: ServiceSettings,
    principal: Principal,
    uri: str,
    variable: Literal["EVOFEED_DATASET_ROOTS", "EVOFEED_INPUT_ROOTS"],
) -> None:
    """Refuse a place that is not open.

    Args:
        settings: of the service; with neither tokens nor roots, any place will do.
        principal: who names it; a token may have narrower roots of its own.
        uri: the place named.
        variable: the setting that opens places of this kind.

    Raises:
        Problem: 422, it is no place of ours; 403.
    """
    datasets = variable == "EVOFEED_DATASET_ROOTS"
    open_to_all = settings.dataset_roots if datasets else settings.input_roots
    place = canonical_place(uri)
    if (open_to_all or settings.auth_on) and not _inside(uri, place, open_to_all):
        raise _closed(uri, f"ask whoever runs the service to add its folder to {variable}")
    if principal.roots is not None and not _inside(uri, place, principal.roots):
        raise _closed(uri, "ask for a token whose roots include it; GET /v1/me shows yours")
    if datasets and principal.datasets is not None and principal.roots is None:
        raise _closed(uri, "a token for some datasets registers places only below roots of its own")


def below(place: str, root: str) -> bool:
    """True if a canonical place is another one or is inside it."""
    return place == root or place.startswith(f"{root.rstrip('/')}/")


def _inside(uri: str, place: str, roots: Sequence[str]) -> bool:
    return ".." not in uri.split("/") and any(below(place, canonical_place(r)) for r in roots)


def _no_place(uri: str, wanted: str) -> Problem:
    return Problem(422, "bad_uri", f"{uri[:200]!r} is no place of ours", next=f"give {wanted}")


def _closed(uri: str, what_next: str) -> Problem:
    what = f"{uri[:200]!r} is below none of the places that are open"
    return Problem(403, "place_not_allowed", what, next=what_next)
