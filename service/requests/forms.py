"""Forms of the service's job pages: accepted from them only, and as strict as JSON bodies.

Every form carries a word that is made of the session and a key of the service: a foreign
page can make a browser send a form with its cookies, but cannot read the word.
"""

from __future__ import annotations

import hmac
from typing import Annotated, Final
from urllib.parse import parse_qs, urlsplit

from fastapi import Depends, Request

from evofeed.service.access.auth import COOKIE, presented
from evofeed.service.problems import Problem
from evofeed.service.state import Service

WORD: Final = "word"
"""Name of the hidden field."""
_MOST: Final = 50  # fields of one form


def make_word(service: Service, request: Request) -> str:
    """The session's anti-forgery token."""
    session = request.cookies.get(COOKIE, "")
    return service.signer.word(f"form {session}")


async def require_own_form(service: Service, request: Request) -> None:
    """Refuse a form that was not made by a page for this session (raises Problem: 403)."""
    # Browsers send "null" for the service's own pages too, which have no referrer.
    origin = request.headers.get("origin", "null")
    elsewhere = origin != "null" and urlsplit(origin).netloc != request.headers.get("host", "")
    if elsewhere or request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise _foreign("it comes from another site")
    if presented(request)[0]:  # a token in a header is not sent by browsers on their own
        return
    word = (await form_fields(request)).get(WORD, "")
    # As bytes: compare_digest refuses non-ASCII text.
    if not hmac.compare_digest(word.encode(), make_word(service, request).encode()):
        raise _foreign("its word is not that of this session")


async def form_fields(request: Request) -> dict[str, str]:
    """The fields of a form, stripped; empty ones are left out."""
    body = (await request.body()).decode(errors="replace")
    try:
        values = parse_qs(body, max_num_fields=_MOST)
    except ValueError:
        raise bad_field("form", f"more than {_MOST} fields") from None
    fields = {name: row[0].strip() for name, row in values.items() if row[0].strip()}
    if any("\x00" in value for value in fields.values()):
        raise bad_field("form", "a text holds NUL")
    return fields


FormDep = Annotated[dict[str, str], Depends(form_fields)]


def bad_field(where: str, message: str) -> Problem:
    """The problem of an invalid field."""
    return Problem(422, "bad_request", f"{where}: {message}", next="go back and correct it")


def _foreign(why: str) -> Problem:
    message, hint = f"this form is refused: {why}", "open the page again and send it from there"
    return Problem(403, "foreign_form", message, next=hint)
