"""Who asks and what they may: scoped tokens, hashed at rest.

A token reads `evf_<id>_<secret>`; the secret has 256 random bits, so a plain
sha256 is the right hash. It is shown once, may expire, and can be revoked. A browser
hands it in once and gets a session, whose cookie reads; it writes through the forms of job
pages only (`evofeed.service.requests.forms`).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import Request
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from evofeed.service.database.database import Database
from evofeed.service.database.tables import SessionRow, TokenRow, record
from evofeed.service.problems import Problem
from evofeed.service.remembered import Remembered

SCOPES: Final = ("read", "publish", "jobs", "admin")
"""What a token may: look; move refs and register; run jobs; tokens, audit and removal."""

PUBLIC: Final = "public"
"""What a route needs that anybody may call."""
COOKIE: Final = "evofeed_session"
SESSION_SECONDS: Final = 7 * 86_400.0
_TOKEN = re.compile(r"evf_(local|[0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_USED_EVERY = 60.0  # seconds between writes of last_used_at: reads must not become writes


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request comes from.

    Attributes:
        id: token id, or `local` when no token is asked for.
        scopes: subset of `SCOPES`.
        datasets: datasets it may touch; None for all.
        roots: places it may name; None for all that the service opens.
        expires_at: when its token ends; None for never.
    """

    id: str
    scopes: frozenset[str]
    datasets: frozenset[str] | None
    roots: tuple[str, ...] | None = None
    expires_at: float | None = None

    def require_dataset(self, name: str) -> None:
        """Refuse a dataset outside this token's list, whether or not it exists.

        Raises:
            Problem: 403.
        """
        if self.datasets is not None and name not in self.datasets:
            raise _forbidden(f"this token is not for dataset {name!r}")

    def require(self, *scopes: str) -> None:
        """Refuse a token that has none of these scopes.

        Raises:
            Problem: 403.
        """
        if not self.scopes & set(scopes):
            names = " or ".join(map(repr, scopes))
            raise _forbidden(f"this token lacks the scope {names}")

    def require_all_datasets(self) -> None:
        """Refuse a token that is for some datasets only.

        Raises:
            Problem: 403.
        """
        if self.datasets is not None:
            raise _forbidden("this needs a token for all datasets")

    @property
    def sees_places(self) -> bool:
        """True if it may know where things lie, and not only what they are."""
        return bool(self.scopes & {"publish", "jobs", "admin"})


LOCAL: Final = Principal("local", frozenset(SCOPES), None)
"""Whoever asks a service that wants no tokens."""
ANONYMOUS: Final = Principal("anonymous", frozenset({"read"}), None)
"""Whoever reads a service that wants tokens for writing only."""


def create_token(
    database: Database,
    *,
    label: str,
    scopes: Sequence[str],
    datasets: Sequence[str] | None = None,
    roots: Sequence[str] | None = None,
    seconds: float | None = None,
    principal: str = "local",
) -> tuple[str, str]:
    """A new token's id and its text; the text cannot be had again.

    It is for these datasets (None: all) and names places below these roots (None: all that are
    open). It ends no later than the token it was made with, and is revoked with it.

    Raises:
        Problem: 401, the token it is made with was revoked meanwhile.
    """
    now, token_id, secret = time.time(), secrets.token_hex(8), secrets.token_urlsafe(32)
    ends = [now + seconds] if seconds is not None else []
    with database.write() as session:
        # Locked: it must not be revoked while it makes another.
        # What a start prints is no parent: what is made with it stays, as what the shell makes.
        maker = "" if principal == LOCAL.id else principal
        parent = session.get(TokenRow, maker, with_for_update=True)
        if parent is not None:
            _require_alive(parent)
            ends += [parent.expires_at] if parent.expires_at is not None else []
        row = TokenRow(id=token_id, label=label, secret_sha256=_hash(secret), created_at=now)
        row.parent, row.expires_at = parent.id if parent else None, min(ends, default=None)
        row.scopes = sorted(set(scopes))
        row.datasets = None if datasets is None else sorted(set(datasets))
        row.roots = None if roots is None else sorted(set(roots))
        session.add(row)
        record(session, principal, "token.create", token_id, label=label, scopes=sorted(scopes))
    return token_id, f"evf_{token_id}_{secret}"


def make_start_token(database: Database) -> str:
    """The text of the token that `evofeed serve` prints: for everything, until the next start."""
    secret = secrets.token_urlsafe(32)
    with database.write() as session:
        row = session.get(TokenRow, LOCAL.id)
        if row is None:
            row = TokenRow(id=LOCAL.id, label="printed by evofeed serve", created_at=time.time())
            session.add(row)
        row.secret_sha256, row.scopes, row.revoked_at = _hash(secret), sorted(SCOPES), None
        record(session, LOCAL.id, "token.create", LOCAL.id, label=row.label)
    return f"evf_{LOCAL.id}_{secret}"


def revoke_start_token(database: Database) -> None:
    """What an earlier start printed is no longer good."""
    with database.write() as session:
        if row := session.get(TokenRow, LOCAL.id):
            row.revoked_at = row.revoked_at or time.time()


def revoke_token(database: Database, token_id: str, principal: str = "local") -> None:
    """Make a token, and all that were made with it, worthless from now on.

    Raises:
        Problem: 404, there is no such token.
    """
    with database.write() as session:
        if session.get(TokenRow, token_id, with_for_update=True) is None:
            raise Problem(
                404, "not_found", f"no token {token_id!r}", next="list them: GET /v1/tokens"
            )
        for one in _family(session, token_id):
            row = session.get_one(TokenRow, one, with_for_update=True)
            if row.revoked_at is None:
                row.revoked_at = time.time()
                record(session, principal, "token.revoke", one)


def _family(session: Session, token_id: str) -> list[str]:
    """A token and all that were made with it, and with those."""
    tree = select(TokenRow.id).where(TokenRow.id == token_id).cte("family", recursive=True)
    tree = tree.union(select(TokenRow.id).where(TokenRow.parent == tree.c.id))
    return list(session.scalars(select(tree.c.id)))


def authenticate_text(database: Database, token: str, session: str = "") -> Principal:
    """The principal of a token, or a browser's session where there is no token.

    Raises:
        Problem: 401, there is none, or it is unknown, expired or revoked. Which
            of these it is stays unsaid until the secret has been proved.
    """
    if not token and session:
        return _of_session(database, session)
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise unauthorized("this needs a token")
    token_id, secret = match.groups()
    with database.read() as read:
        row = read.get(TokenRow, token_id)
    good = hmac.compare_digest(row.secret_sha256 if row else b"\0" * 32, _hash(secret))
    if row is None or not good:
        raise unauthorized("the token is not valid")
    _require_alive(row)
    now = time.time()
    if now - (row.last_used_at or 0.0) > _USED_EVERY:
        _touch(database, token_id, now)
    return principal_of(row)


def principal_of(row: TokenRow) -> Principal:
    """The principal of a token; whoever administers the service may look at it."""
    scopes = frozenset(row.scopes)
    return Principal(
        row.id,
        scopes | {"read"} if "admin" in scopes else scopes,
        frozenset(row.datasets) if row.datasets is not None else None,
        tuple(row.roots) if row.roots is not None else None,
        row.expires_at,
    )


def sign_in(database: Database, token: str) -> str:
    """A session for whoever has this token, as the text of its cookie.

    Raises:
        Problem: 401.
    """
    principal = authenticate_text(database, token)
    secret, now = secrets.token_urlsafe(32), time.time()
    with database.write() as session:
        session.execute(delete(SessionRow).where(SessionRow.expires_at <= now))
        row = SessionRow(secret_sha256=_hash(secret), token_id=principal.id)
        row.expires_at = now + SESSION_SECONDS
        session.add(row)
    return secret


def sign_out(database: Database, session_text: str) -> None:
    """End a session."""
    with database.write() as session:
        session.execute(delete(SessionRow).where(SessionRow.secret_sha256 == _hash(session_text)))


def _of_session(database: Database, text: str) -> Principal:
    with database.read() as read:
        row = read.get(SessionRow, _hash(text))
        token = read.get(TokenRow, row.token_id) if row is not None else None
    if row is None or token is None or row.expires_at <= time.time():
        raise unauthorized("the session has ended")
    _require_alive(token)
    return principal_of(token)


def holder_of(database: Database, principal: str) -> Principal:
    """Who a principal is now, for what is done in its name later: a job's end.

    Raises:
        Problem: 401, its token was revoked or has expired.
    """
    with database.read() as session:
        row = session.get(TokenRow, principal)
    if row is None and principal == LOCAL.id:  # the service asked nobody for a token
        return LOCAL
    if row is None:
        raise unauthorized("the token is not known")
    _require_alive(row)
    return principal_of(row)


def roots_of(database: Database, principal: str) -> tuple[str, ...] | None:
    """The places a principal may name, its token being good or not; None: all that are open."""
    with database.read() as session:
        row = session.get(TokenRow, principal)
    return principal_of(row).roots if row is not None else None


def is_alive(database: Database, principal: Principal) -> bool:
    """True if its token is still good."""
    try:
        holder_of(database, principal.id)
    except Problem:
        return False
    return True


def _require_alive(row: TokenRow) -> None:
    if row.revoked_at is not None:
        raise unauthorized("the token was revoked")
    if row.expires_at is not None and row.expires_at <= time.time():
        raise unauthorized("the token has expired")


def presented(request: Request, *, form: bool = False) -> tuple[str, str]:
    """The token and the session that a request carries, each empty if it does not.

    Args:
        request: the request.
        form: it is a form of our own pages, whose word is checked.
    """
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return token.strip(), ""
    if key := request.headers.get("x-api-key", ""):  # Boltz's client; no page can send it unasked
        return key.strip(), ""
    reads = request.method in ("GET", "HEAD")
    # Programs that know no tokens, such as ColabFold's: any name, the token as password. A browser
    # sends what it was given by itself, so a foreign page must not be able to use it.
    if kind.lower() == "basic" and (reads or "origin" not in request.headers):
        with contextlib.suppress(ValueError):
            return base64.b64decode(token, validate=True).decode("ascii").partition(":")[2], ""
    # Elsewhere a cookie only reads: a foreign page that makes a browser POST gains nothing.
    return "", request.cookies.get(COOKIE, "") if reads or form else ""


def _touch(database: Database, token_id: str, now: float) -> None:
    with database.write() as session:
        if row := session.get(TokenRow, token_id):
            row.last_used_at = now


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def unauthorized(what: str) -> Problem:
    """The problem of whoever could not be identified."""
    hint = "set EVOFEED_TOKEN, or send `Authorization: Bearer evf_...`; "
    hint += "`evofeed tokens create` makes one"
    challenge = {"WWW-Authenticate": 'Bearer realm="evofeed"'}
    return Problem(401, "unauthorized", what, next=hint, headers=challenge)


def _forbidden(what: str) -> Problem:
    return Problem(403, "forbidden", what, next="ask whoever runs the service for a wider token")


class Authority:
    """Who was let in lately; tokens are known by their hashes alone.

    Args:
        database: of tokens.
        trust: seconds after which a revocation in another process is noticed at the latest.
        grace: seconds for which tokens read bytes while the database is away.
    """

    def __init__(self, database: Database, trust: float, grace: float) -> None:
        self._database = database
        self._known = Remembered[bytes, Principal](trust, grace)

    def known(self, token: str, session: str) -> Principal | None:
        """The principal of a token, if the database need not be asked."""
        found = self._known.known(_key(token, session))
        return found if found is not None and not _expired(found) else None

    def principal(self, token: str, session: str, *, reads_bytes: bool) -> Principal:
        """The principal of a token or a browser's session.

        Raises:
            Problem: 401.
            DBAPIError: the database is away, and nothing is known of them.
        """
        found = self._known.get(
            _key(token, session),
            lambda: authenticate_text(self._database, token, session),
            without_database=reads_bytes,
        )
        if _expired(found):
            raise unauthorized("the token has expired")
        return found

    def forget(self) -> None:
        """A token was revoked here, or a session ended."""
        self._known.forget()


def _expired(principal: Principal) -> bool:
    return principal.expires_at is not None and principal.expires_at <= time.time()


def _key(token: str, session: str) -> bytes:
    return hashlib.sha256(f"{token}\n{session}".encode("utf-8", "surrogatepass")).digest()
