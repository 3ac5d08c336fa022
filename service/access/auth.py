"""Authentication and rights: scoped tokens, hashed at rest.

A token reads `evf_<id>_<secret>`; the secret has 256 random bits, so a plain
sha256 is the right hash. It is shown once, may expire, and can be revoked. A browser
hands it in once and gets a cookie that names it, signed; the token is looked up at each request.
The cookie reads; it writes through the forms of job pages only (`evofeed.service.requests.forms`).
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
from itsdangerous import BadSignature, TimestampSigner
from sqlalchemy import select

from evofeed.service.database.database import Database
from evofeed.service.database.tables import SecretRow, TokenRow, record
from evofeed.service.names import view_of
from evofeed.service.problems import Problem
from evofeed.service.remembered import Remembered
from evofeed.service.views import Token

SCOPES: Final = ("read", "publish", "jobs", "admin")
"""Rights of a token: read; move refs and register; run jobs; tokens, audit and removal."""

PUBLIC: Final = "public"
"""The scope of routes that need no token."""
COOKIE: Final = "evofeed_session"
SESSION_SECONDS: Final = 7 * 86_400
_TOKEN = re.compile(r"evf_(local|[0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_SESSION = re.compile(r"(local|[0-9a-f]{16})\.[A-Za-z0-9_-]{1,20}\.[A-Za-z0-9_-]{43}")
_USED_EVERY = 60.0  # seconds between writes of last_used_at: reads must not become writes


@dataclass(frozen=True, slots=True)
class Principal:
    """The identity of a caller."""

    id: str  # the token's, or `local` if the service needs no token
    scopes: frozenset[str]  # subset of `SCOPES`
    datasets: frozenset[str] | None  # accessible ones; None for all
    roots: tuple[str, ...] | None = None  # folders for new places; None: all open ones
    expires_at: float | None = None  # when its token ends; None for never

    def require_dataset(self, name: str) -> None:
        """Refuse a dataset outside this token's list, whether or not it exists.

        Raises:
            Problem: 403.
        """
        if self.datasets is not None and name not in self.datasets:
            raise _forbidden(f"this token is not for dataset {name!r}")

    def require(self, *scopes: str) -> None:
        """Refuse a token that has none of these scopes (raises Problem: 403)."""
        if not self.scopes & set(scopes):
            names = " or ".join(map(repr, scopes))
            raise _forbidden(f"this token lacks the scope {names}")

    def require_all_datasets(self) -> None:
        """Refuse a token that is for some datasets only (raises Problem: 403)."""
        if self.datasets is not None:
            raise _forbidden("this needs a token for all datasets")

    @property
    def sees_places(self) -> bool:
        """True if it may see locations of files."""
        return bool(self.scopes & {"publish", "jobs", "admin"})


LOCAL: Final = Principal("local", frozenset(SCOPES), None)
"""The caller of a service without tokens."""
ANONYMOUS: Final = Principal("anonymous", frozenset({"read"}), None)
"""A reader of a service that needs tokens for writing only."""


def create_token(
    database: Database,
    *,
    label: str,
    scopes: Sequence[str],
    datasets: Sequence[str] | None = None,
    roots: Sequence[str] | None = None,
    seconds: float | None = None,
    principal: str = "local",
    token_id: str = "",
) -> tuple[str, str]:
    """A new token's id and its text, which is not stored.

    It is for these datasets (None: all) and names places below these roots (None: all that are
    open). It ends no later than the token it was made with, and is revoked with it.

    Raises:
        Problem: 401, the token it is made with was revoked meanwhile.
    """
    now, secret = time.time(), secrets.token_urlsafe(32)
    token_id = token_id or secrets.token_hex(8)
    ends = [now + seconds] if seconds is not None else []
    with database.write() as session:
        # Locked: the parent must not be revoked meanwhile.
        # The token printed at a start is not a parent: tokens made with it outlive it.
        maker = "" if principal == LOCAL.id else principal
        parent = session.get(TokenRow, maker, with_for_update=True)
        if parent is not None:
            _require_alive(parent)
            ends += [parent.expires_at] if parent.expires_at is not None else []
        row = TokenRow(id=token_id, label=label, secret_sha256=_hash(secret), revoked_at=None)
        row.parent, row.expires_at = parent.id if parent else None, min(ends, default=None)
        row.created_at = now
        row.scopes = sorted(set(scopes))
        row.datasets = None if datasets is None else sorted(set(datasets))
        row.roots = None if roots is None else sorted(set(roots))
        session.merge(row)  # the token of a start replaces that of the last one
        record(session, principal, "token.create", token_id, label=label, scopes=sorted(scopes))
    return token_id, f"evf_{token_id}_{secret}"


def make_start_token(database: Database) -> str:
    """The text of the token that `evofeed serve` prints: for everything, until the next start."""
    label = "printed by evofeed serve"
    return create_token(database, label=label, scopes=SCOPES, token_id=LOCAL.id)[1]


def revoke_token(database: Database, token_id: str, principal: str = "local") -> None:
    """Revoke a token and all tokens made with it.

    Raises:
        Problem: 404, there is no such token.
    """
    with database.write() as session:
        if session.get(TokenRow, token_id, with_for_update=True) is None:
            hint = "list them: GET /v1/tokens"
            raise Problem(404, "not_found", f"no token {token_id!r}", next=hint)
        # Its descendants too.
        tree = select(TokenRow.id).where(TokenRow.id == token_id).cte("family", recursive=True)
        tree = tree.union(select(TokenRow.id).where(TokenRow.parent == tree.c.id))
        for child_id in session.scalars(select(tree.c.id)).all():
            row = session.get_one(TokenRow, child_id, with_for_update=True)
            if row.revoked_at is None:
                row.revoked_at = time.time()
                record(session, principal, "token.revoke", child_id)


def tokens_after(database: Database, after: str = "", limit: int | None = None) -> list[Token]:
    """Tokens sorted by id, after the id `after`."""
    query = select(TokenRow).where(TokenRow.id > after).order_by(TokenRow.id).limit(limit)
    with database.read() as session:
        return [view_of(Token, row) for row in session.scalars(query)]


def _authenticated(database: Database, token: str) -> TokenRow:
    """The row of a token.

    Raises:
        Problem: 401, there is none, or it is unknown, expired or revoked. Which
            of these it is stays unsaid until the secret has been proved.
    """
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
        with database.write() as session:
            session.get_one(TokenRow, token_id).last_used_at = now
    return row


def principal_of(row: TokenRow) -> Principal:
    """The principal of a token, for administrators."""
    scopes = frozenset(row.scopes)
    return Principal(
        row.id,
        scopes | {"read"} if "admin" in scopes else scopes,
        frozenset(row.datasets) if row.datasets is not None else None,
        tuple(row.roots) if row.roots is not None else None,
        row.expires_at,
    )


def holder_of(database: Database, principal: str) -> Principal:
    """The current rights of a principal, for work done in its name later, such as a job's end.

    Raises:
        Problem: 401, its token was revoked or has expired.
    """
    with database.read() as session:
        row = session.get(TokenRow, principal)
    if row is None and principal == LOCAL.id:  # the service needs no token
        return LOCAL
    if row is None:
        raise unauthorized("the token is not known")
    _require_alive(row)
    return principal_of(row)


def roots_of(database: Database, principal: str) -> tuple[str, ...] | None:
    """The folders a principal may name, even if its token is invalid; None: all open ones."""
    with database.read() as session:
        row = session.get(TokenRow, principal)
    return principal_of(row).roots if row is not None else None


def is_alive(database: Database, principal: Principal) -> bool:
    """True if its token is still valid."""
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
    """The token and the session of a request or a form; empty if absent."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return token.strip(), ""
    if key := request.headers.get("x-api-key", ""):  # Boltz's client; a page cannot send it
        return key.strip(), ""
    reads = request.method in ("GET", "HEAD")
    # Clients with basic auth only, such as ColabFold's: any name, the token as password. Browsers
    # resend it on their own, so it must be useless to a foreign page.
    if kind.lower() == "basic" and (reads or "origin" not in request.headers):
        with contextlib.suppress(ValueError):
            return base64.b64decode(token, validate=True).decode("ascii").partition(":")[2], ""
    # Elsewhere a cookie only reads: a foreign page that makes a browser POST gains nothing.
    return "", request.cookies.get(COOKIE, "") if reads or form else ""


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def unauthorized(message: str) -> Problem:
    """The problem of a caller without a valid token."""
    hint = "set EVOFEED_TOKEN, or send `Authorization: Bearer evf_...`; "
    hint += "`evofeed tokens create` makes one"
    challenge = {"WWW-Authenticate": 'Bearer realm="evofeed"'}
    return Problem(401, "unauthorized", message, next=hint, headers=challenge)


def _forbidden(message: str) -> Problem:
    return Problem(403, "forbidden", message, next="ask the service's operator for a wider token")


class Authority:
    """Authenticates callers; tokens are cached by their hashes.

    Cookies are signed with the key; for `grace` seconds tokens read bytes while the database is
    away.
    """

    def __init__(self, database: Database, key: bytes, grace: float) -> None:
        self._database, self._key = database, key
        self._known = Remembered[bytes, Principal](grace)

    def cached(self, token: str, session: str) -> Principal | None:
        """The cached principal of a token, if there is one."""
        principal = self._known.cached(_named(token, session))
        return principal if principal is not None and not _expired(principal) else None

    def principal(self, token: str, session: str, *, reads_bytes: bool) -> Principal:
        """The principal of a token, or a browser's session where there is no token.

        Raises:
            Problem: 401.
            DBAPIError: the database is away, and nothing is known of them.
        """
        principal = self._known.get(
            _named(token, session), lambda: self._ask(token, session), without_database=reads_bytes
        )
        if _expired(principal):
            raise unauthorized("the token has expired")
        return principal

    def _ask(self, token: str, session: str) -> Principal:
        if token or not session:
            return principal_of(_authenticated(self._database, token))
        match = _SESSION.fullmatch(session)
        with self._database.read() as read:
            row = read.get(TokenRow, match[1]) if match else None
        try:
            if row is None:
                raise BadSignature("no such token")
            self._signer(row).unsign(session, max_age=SESSION_SECONDS)
        except BadSignature:
            raise unauthorized("the session has ended") from None
        _require_alive(row)
        return principal_of(row)

    def sign_in(self, token: str) -> str:
        """A session for the token's holder, as the text of its cookie (raises Problem: 401)."""
        row = _authenticated(self._database, token)
        return self._signer(row).sign(row.id).decode()

    def sign_out(self, session: str) -> None:
        """End the sessions of the token that a session names; no effect if it has ended."""
        try:
            token_id = self._ask("", session).id
        except Problem:
            return
        with self._database.write() as writing:
            secret = SecretRow(name=f"sessions {token_id}", value=secrets.token_bytes(32))
            writing.merge(secret)
            record(writing, token_id, "session.end", token_id)
        self.forget()

    def _signer(self, row: TokenRow) -> TimestampSigner:
        """The signer of a token's sessions, which end with its secret or by signing out."""
        with self._database.read() as session:
            secret = session.get(SecretRow, f"sessions {row.id}")
        salt = b"session" + row.secret_sha256 + (secret.value if secret else b"")
        return TimestampSigner(self._key, salt=salt, digest_method=hashlib.sha256)

    def forget(self) -> None:
        """A token was revoked here, or signed out."""
        self._known.forget()


def _expired(principal: Principal) -> bool:
    return principal.expires_at is not None and principal.expires_at <= time.time()


def _named(token: str, session: str) -> bytes:
    return hashlib.sha256(f"{token}\n{session}".encode("utf-8", "surrogatepass")).digest()
