"""A database's URL, checked before anything connects.

Its password must not be shown, so no message here repeats what was given.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from evofeed.errors import ServiceError

_DRIVERS: Final = ("sqlite", "postgresql", "postgresql+psycopg")


def parse_url(text: str) -> URL:
    """The URL of an SQLite file or a PostgreSQL database.

    Raises:
        ServiceError: it is neither.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # the latter for a port that is no number
        raise _unusable() from None
    if url.drivername not in _DRIVERS:
        raise _unusable()
    if url.drivername == "sqlite" and url.database in (None, "", ":memory:"):
        raise _unusable()  # each of our threads would see an empty one of its own
    return url


def _unusable() -> ServiceError:
    return ServiceError(
        "EVOFEED_DATABASE_URL is no database URL; use sqlite:///FILE or "
        "postgresql://USER:PASSWORD@HOST/NAME"
    )
