"""The parts of every page: its frame, its filters, its refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import jinja2
from fastapi import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from evofeed import __version__
from evofeed.base.counts import counted
from evofeed.service.access.auth import COOKIE, Principal
from evofeed.service.names import iso
from evofeed.service.problems import Problem
from evofeed.service.requests.forms import make_word

_HERE: Final = Path(__file__).resolve().parent.parent
_PAGES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def _span(seconds: float) -> str:
    """A time that something takes, in the two largest units."""
    seconds = max(0, round(seconds))
    for unit, name, below, small in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= unit:
            return f"{seconds // unit} {name} {seconds % unit // below} {small}"
    return f"{seconds} s"


_PAGES.filters |= {
    "short": lambda digest: digest[:12],
    "iso": iso,
    "when": lambda time: f"{time[:16].replace('T', ' ')} UTC",  # of an ISO time, to the minute
    "count": counted,
    "span": _span,
    "part": lambda text: quote(str(text), safe=""),
}
_PAGES.globals["version"] = __version__


def render(
    template: str,
    request: Request,
    principal: Principal | None = None,
    status: int = 200,
    **values: Any,
) -> HTMLResponse:
    """A page, with the caller's name if signed in."""
    frame = {
        "who": principal.id if principal else "",
        "signed_in": COOKIE in request.cookies,
        "may": principal.scopes if principal else frozenset(),
        "places": principal is not None and principal.sees_places,
        "word": make_word(request.app.state.service, request),
    }
    text = _PAGES.get_template(template).render(frame | values)
    return HTMLResponse(text, status, {"Cache-Control": "no-store"})


def problem_page(request: Request, problem: Problem) -> Response | None:
    """A refusal as a page if a browser asked for a page; else None."""
    path = request.url.path
    if path != "/" and not path.startswith("/ui/"):
        return None
    if problem.status == 401 and path != "/ui/login":
        url = path + (f"?{request.url.query}" if request.url.query else "")
        then = url if request.method == "GET" else "/"
        return RedirectResponse(f"/ui/login?then={quote(then, safe='')}", 303)
    page = render("problem.html", request, None, problem.status, problem=problem)
    page.headers.update(problem.headers)
    return page
