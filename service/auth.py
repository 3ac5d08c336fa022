"""Who asks and what they may: scoped tokens, hashed at rest.

A token reads `evf_<id>_<secret>`; the secret has 256 random bits, so a plain
sha256 is the right hash. It is shown once, may expire, and can be revoked.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass
from typing import Final

from fastapi import Request

from evofeed.service.audit import record
from evofeed.service.database import Database
from evofeed.service.problems import Problem
from evofeed.service.quotas import NO_QUOTAS, Quotas
from evofeed.service.tables import TokenRow

SCOPES: Final = ("read", "publish", "jobs", "admin")
"""What a token may: look; move refs and register; run jobs; tokens, audit and removal."""

COOKIE: Final = "evofeed_token"
_TOKEN = re.compile(r"evf_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_USED_EVERY = 60.0  # seconds between writes of last_used_at: reads must not become writes


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request comes from.

    Attributes:
        id: token id, or `local` when no token is asked for.
        scopes: subset of `SCOPES`.
        datasets: datasets it may touch; None for all.
        quotas: what its jobs may use.
    """

    id: str
    scopes: frozenset[str]
    datasets: frozenset[str] | None
    quotas: Quotas = NO_QUOTAS

    def require_dataset(self, name: str) -> None:
        """Refuse a dataset outside this token's list, whether or not it exists.

        Raises:
            Problem: 403.
        """
        if self.datasets is not None and name not in self.datasets:
            raise _forbidden(f"this token is not for dataset {name!r}")

    def require(self, scope: str) -> None:
        """Refuse a scope this token lacks.

        Raises:
            Problem: 403.
        """
        if scope not in self.scopes:
            raise _forbidden(f"this token lacks the scope {scope!r}")

    def require_all_datasets(self) -> None:
        """Refuse a token that is for some datasets only.

        Raises:
            Problem: 403.
        """
        if self.datasets is not None:
            raise _forbidden("this needs a token for all datasets")


LOCAL: Final = Principal("local", frozenset(SCOPES), None)


def create_token(
    database: Database,
    *,
    label: str,
    scopes: list[str],
    datasets: list[str] | None = None,
    seconds: float | None = None,
    quotas: Quotas = NO_QUOTAS,
    principal: str = "local",
) -> tuple[str, str]:
    """A new token's id and its text; the text cannot be had again.

    Args:
        database: where to keep its hash.
        label: what it is for.
        scopes: some of `SCOPES`.
        datasets: datasets it is for; None for all.
        seconds: until it expires; None for never.
        quotas: what its jobs may use.
        principal: who made it, for the audit.
    """
    now, token_id, secret = time.time(), secrets.token_hex(8), secrets.token_urlsafe(32)
    with database.write() as session:
        session.add(
            TokenRow(
                id=token_id,
                label=label,
                secret_sha256=_hash(secret),
                scopes=sorted(set(scopes)),
                datasets=sorted(set(datasets)) if datasets is not None else None,
                max_jobs=quotas.max_jobs,
                max_chains=quotas.max_chains,
                created_at=now,
                expires_at=now + seconds if seconds is not None else None,
            )
        )
        record(session, principal, "token.create", token_id, label=label, scopes=sorted(scopes))
    return token_id, f"evf_{token_id}_{secret}"


def revoke_token(database: Database, token_id: str, principal: str = "local") -> None:
    """Make a token worthless from now on; a second time changes nothing.

    Raises:
        Problem: 404, there is no such token.
    """
    with database.write() as session:
        row = session.get(TokenRow, token_id)
        if row is None:
            raise Problem(
                404, "not_found", f"no token {token_id!r}", next="list them: GET /v1/tokens"
            )
        if row.revoked_at is None:
            row.revoked_at = time.time()
            record(session, principal, "token.revoke", token_id)


def authenticate(database: Database, request: Request) -> Principal:
    """The principal a request's token stands for.

    Raises:
        Problem: 401, no token, or one that is unknown, expired or revoked. Which
            of these it is stays unsaid until the secret has been proved.
    """
    return authenticate_text(database, _presented(request))


def authenticate_text(database: Database, token: str) -> Principal:
    """The principal a token stands for.

    Raises:
        Problem: 401, as `authenticate`.
    """
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise _unauthorized("this needs a token")
    token_id, secret = match.groups()
    with database.read() as session:
        row = session.get(TokenRow, token_id)
    good = hmac.compare_digest(row.secret_sha256 if row else b"\0" * 32, _hash(secret))
    if row is None or not good:
        raise _unauthorized("the token is not valid")
    now = time.time()
    if row.revoked_at is not None:
        raise _unauthorized("the token was revoked")
    if row.expires_at is not None and row.expires_at <= now:
        raise _unauthorized("the token has expired")
    if now - (row.last_used_at or 0.0) > _USED_EVERY:
        _touch(database, token_id, now)
    datasets = frozenset(row.datasets) if row.datasets is not None else None
    quotas = Quotas(row.max_jobs, row.max_chains)
    return Principal(row.id, frozenset(row.scopes), datasets, quotas)


def _presented(request: Request) -> str:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return token.strip()
    # A cookie only ever reads: a foreign page that makes a browser POST gains nothing.
    return request.cookies.get(COOKIE, "") if request.method in ("GET", "HEAD") else ""


def _touch(database: Database, token_id: str, now: float) -> None:
    with database.write() as session:
        if row := session.get(TokenRow, token_id):
            row.last_used_at = now


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _unauthorized(what: str) -> Problem:
    return Problem(
        401,
        "unauthorized",
        what,
        next="send `Authorization: Bearer evf_...`; `evofeed tokens create` makes one",
        headers={"WWW-Authenticate": 'Bearer realm="evofeed"'},
    )


def _forbidden(what: str) -> Problem:
    return Problem(403, "forbidden", what, next="ask whoever runs the service for a wider token")
