"""Forms of our own pages: sent by nobody else, and as strict as JSON bodies.

Every form carries a word that is made of the session and a key of the service: a foreign
page can make a browser send a form with its cookies, but cannot read the word.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import parse_qs, urlsplit

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError

from evofeed.service.access.auth import COOKIE, presented
from evofeed.service.problems import Problem
from evofeed.service.state import Service

_B = TypeVar("_B", bound=BaseModel)
WORD: Final = "word"
"""Name of the hidden field."""
_MOST: Final = 200  # fields of one form


class Fields:
    """What a form holds: every value is text, and a field may come several times."""

    def __init__(self, values: Mapping[str, list[str]]) -> None:
        self._values = values

    def text(self, name: str) -> str:
        """A field's value without space around it; empty if it was not filled in."""
        return self._values.get(name, [""])[0].strip()

    def all(self, name: str) -> list[str]:
        """Every value of a field that was filled in."""
        return [value.strip() for value in self._values.get(name, []) if value.strip()]

    def column(self, name: str) -> list[str]:
        """A field of every row of a form's table, filled in or not."""
        return [value.strip() for value in self._values.get(name, [])]

    def words(self, name: str) -> list[str]:
        """What a field holds, between commas and spaces."""
        return " ".join(self.all(name)).replace(",", " ").split()

    def number(self, name: str) -> int | float | None:
        """A field as a number; None if it was not filled in.

        Raises:
            Problem: 422.
        """
        text = self.text(name)
        if not text:
            return None
        try:
            return int(text)
        except ValueError:
            pass
        try:
            return float(text)
        except ValueError:
            raise _bad(name, f"{text[:40]!r} is no number") from None


def make_word(service: Service, request: Request) -> str:
    """The word of the session that asks."""
    session = request.cookies.get(COOKIE, "")
    return service.signer.word(f"form {session}")


async def require_own_form(service: Service, request: Request) -> None:
    """Refuse a form that no page of ours has made for this session.

    Raises:
        Problem: 403.
    """
    # "null" is what a browser says of our own pages too, for they tell nobody where they are.
    origin = request.headers.get("origin", "null")
    elsewhere = origin != "null" and urlsplit(origin).netloc != request.headers.get("host", "")
    if elsewhere or request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise _foreign("it comes from another site")
    if presented(request)[0]:  # a token in a header: no browser sends it by itself
        return
    word = (await form_fields(request)).text(WORD)
    # As bytes: other letters than ASCII are an error in compare_digest.
    if not hmac.compare_digest(word.encode(), make_word(service, request).encode()):
        raise _foreign("its word is not that of this session")


async def form_fields(request: Request) -> Fields:
    """What a form holds.

    Raises:
        Problem: 422, it is no form.
    """
    body = (await request.body()).decode(errors="replace")
    try:
        values = parse_qs(body, keep_blank_values=True, max_num_fields=_MOST)
    except ValueError:
        raise _bad("form", f"more than {_MOST} fields") from None
    if any("\x00" in value for row in values.values() for value in row):
        raise _bad("form", "a text holds NUL")
    return Fields(values)


FormDep = Annotated[Fields, Depends(form_fields)]


def filled(kind: type[_B], values: Mapping[str, Any]) -> _B:
    """A body made of a form's values, checked as if it had come as JSON; None is left out.

    Raises:
        Problem: 422.
    """
    try:
        return kind.model_validate({k: v for k, v in values.items() if v is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _bad(where, str(first["msg"]).removeprefix("Value error, ")) from None


def _bad(where: str, what: str) -> Problem:
    return Problem(422, "bad_request", f"{where}: {what}", next="go back and correct it")


def _foreign(why: str) -> Problem:
    return Problem(
        403,
        "foreign_form",
        f"this form is refused: {why}",
        next="open the page again and send it from there",
    )
