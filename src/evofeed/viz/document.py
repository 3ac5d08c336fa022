"""Pages that need nothing from a network, and the scripts that draw what is on them.

A part of a page is a `Panel`: markup that holds its data as JSON, without a script or a style of
its own, so a strict policy holds. Scripts of ours draw panels that come near the window, by
libraries of installed packages: plotly.js charts and maps, Mol* structures. A page has them inline
(`page_html`) or as files beside it (`SCRIPTS`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from evofeed.base.errors import InputError

SCRIPTS: Final = ("panels.js", "figures.js", "structure.js", "alignment.js")
"""What a page with panels loads, in this order; `script` has their text."""
LATER: Final = ("plotly.min.js", "molviewspec.js", "molviewspec.css", "panels.css")
"""What panels need besides; a library is read once a panel that needs it is near."""
_PACKAGES: Final = {
    "plotly.min.js": ("plotly", "package_data"),
    "molviewspec.js": ("ipymolstar", "static"),
    "molviewspec.css": ("ipymolstar", "static"),
}
_NEEDED: Final = {
    "data-figure": "figures.js",
    "data-structure": "structure.js",
    "data-alignment": "alignment.js",
}
_LIBRARIES: Final = {"figures.js": "plotly.min.js", "structure.js": "molviewspec.js"}
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; connect-src data: blob:; "
    "script-src 'unsafe-inline' 'unsafe-eval'"  # Mol* compiles the help on its mouse bindings
)
_HEIGHT: Final = 620  # of a panel in a notebook, pixels


class Panel(str):
    """Markup of one part of a page; a notebook shows it."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """A page of its own in a frame, with the scripts that it needs."""
        page = escape(page_html("panel", f"<main>{self}</main>"))
        return (
            f'<iframe title="panel" sandbox="allow-scripts" srcdoc="{page}" '
            f'style="width:100%;height:{_HEIGHT}px;border:0"></iframe>'
        )


def panel_html(kind: str, data: Mapping[str, Any], title: str, note: str = "") -> Panel:
    """A panel that the script for `kind` (figure, structure, alignment) draws.

    Args:
        data: what the script needs; arrays may be numpy's, and what is not finite is null.
    """
    drawn = json.dumps(_plain(data), separators=(",", ":"))
    small = f" <small>{escape(note)}</small>" if note else ""
    return Panel(
        f'<figure class="{kind}"><figcaption>{escape(title)}{small}</figcaption>'
        f'<div class="plot" role="group" aria-label="{escape(title)}" '
        f'data-{kind}="{escape(drawn)}"></div></figure>'
    )


def page_html(title: str, body: str) -> str:
    """A whole page with all that its panels need; the browser itself keeps it from asking others.

    Args:
        body: its markup; panels may stand in `<div class="panels">` side by side.
    """
    needed = [name for mark, name in _NEEDED.items() if f"{mark}=" in body]
    libraries = [_LIBRARIES[name] for name in needed if name in _LIBRARIES]
    style = script("page.css") + script("panels.css")
    if "molviewspec.js" in libraries:
        style += script("molviewspec.css")
    parts = [
        f'<script type="text/plain" data-name="{name}">{_inside(script(name))}</script>'
        for name in libraries
    ]
    ours = ["panels.js", *needed] if needed else []
    parts += [f"<script>\n{_inside(script(name))}</script>" for name in ours]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head>\n<body>"
        f"{body}{''.join(parts)}</body></html>\n"
    )


def table_html(heads: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """A table of text, all of it escaped; None is an empty cell, and a row begins with its name."""
    cells = [("th", heads), *(("td", row) for row in rows)]
    lines = (
        (f"<th>{escape(str(first))}</th>" if first != "" else "<td></td>")  # no header without text
        + "".join(f"<{tag}>{'' if x is None else escape(str(x))}</{tag}>" for x in rest)
        for tag, (first, *rest) in cells
    )
    return f"<table><tr>{'</tr><tr>'.join(lines)}</tr></table>"


@cache
def script(name: str) -> str:
    """The text of a script or a style sheet that panels need.

    Raises:
        InputError: the package that ships it is not installed.
    """
    package, folder = _PACKAGES.get(name, ("evofeed.viz", "."))
    spec = find_spec(package)  # where it is, without its import
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"pages need the package {package}; pip install {package}")
    path = Path(spec.submodule_search_locations[0]) / folder / name
    if not path.is_file():
        raise InputError(
            f"the installed {package} has no {name}; pip install -U {package}", path=str(path)
        )
    text = path.read_text("utf-8")
    if name == "molviewspec.js":  # a module: as a plain script it works inline and from a file
        code, _, exported = text.rpartition("export{")
        text = f"(()=>{{{code}globalThis.MolViewSpec={exported.partition(' as default')[0]}}})();"
    return text


def _inside(text: str) -> str:
    """A script as an element of a page may hold it."""
    return text.replace("</script", "<\\/script")


def _plain(value: Any) -> Any:
    """JSON-ready: arrays as lists, numbers that are not finite as None."""
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray | list | tuple | range):
        return [
            _plain(entry) for entry in (value.tolist() if isinstance(value, np.ndarray) else value)
        ]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.item() if isinstance(value, np.generic) else value
