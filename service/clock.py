"""Times as clients read them."""

from __future__ import annotations

import datetime


def iso(seconds: float) -> str:
    """Unix seconds as ISO 8601 UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")


def iso_or_none(seconds: float | None) -> str | None:
    """The same, where there may be no time."""
    return None if seconds is None else iso(seconds)
