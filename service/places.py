"""Places a client may name: the service reads there with its own rights."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import StringConstraints

from evofeed.service.problems import Problem
from evofeed.service.settings import ServiceSettings

Uri = Annotated[
    str, StringConstraints(min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f\x7f]+$")
]


def require_root(
    settings: ServiceSettings, roots: tuple[str, ...], uri: str, variable: str
) -> None:
    """Refuse a place that was not opened up.

    Args:
        settings: of the service; with neither tokens nor roots, any place will do.
        roots: URI prefixes that are open.
        uri: the place named.
        variable: the setting that opens places, for the message.

    Raises:
        Problem: 403.
    """
    if not roots and not settings.auth_on:
        return
    plain = uri.removeprefix("file://")
    inside = any(_below(plain, root.removeprefix("file://").rstrip("/")) for root in roots)
    if not inside or ".." in plain.split("/"):
        raise Problem(
            403,
            "place_not_allowed",
            f"{uri[:200]!r} lies below none of the places that are open",
            next=f"ask whoever runs the service to add its folder to {variable}",
        )


def _below(uri: str, root: str) -> bool:
    if "://" not in uri and "://" not in root:  # a link must not lead out of what is open
        uri, root = os.path.realpath(uri), os.path.realpath(root or "/").rstrip("/")
    return uri == root or uri.startswith(f"{root}/")
