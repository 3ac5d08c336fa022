"""Pages that need no network, and the scripts that draw their panels.

A part of a page is a `Panel`: markup with its data as JSON, without inline scripts and styles, so
a strict content security policy is possible. Evofeed's scripts draw a panel once it is near the
window, with libraries of installed packages: plotly.js for charts and maps, Mol* for structures.
A page has them inline (`page_html`) or as separate files (`SCRIPTS`).
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
"""Scripts of a page with panels, in order of loading; `script` has their text."""
LATER: Final = ("plotly.min.js", "molviewspec.js", "molviewspec.css", "panels.css")
"""Libraries and styles of panels; a library is loaded when a panel that needs it is near."""
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
    """Markup of one part of a page, which a notebook displays."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """The panel as a page in a frame, with the scripts that it needs."""
        page = escape(page_html("panel", f"<main>{self}</main>"))
        return (
            f'<iframe title="panel" sandbox="allow-scripts" srcdoc="{page}" '
            f'style="width:100%;height:{_HEIGHT}px;border:0"></iframe>'
        )


def panel_html(kind: str, data: Mapping[str, Any], title: str, note: str = "") -> Panel:
    """A panel that the script for `kind` (figure, structure, alignment) draws.

    Args:
        data: of the script; arrays may be numpy's, and numbers that are not finite become null.
    """
    encoded = json.dumps(_plain(data), separators=(",", ":"))
    small = f" <small>{escape(note)}</small>" if note else ""
    return Panel(
        f'<figure class="{kind}"><figcaption>{escape(title)}{small}</figcaption>'
        f'<div class="plot" role="group" aria-label="{escape(title)}" '
        f'data-{kind}="{escape(encoded)}"></div></figure>'
    )


def page_html(title: str, body: str) -> str:
    """A complete page with the scripts of its panels; its policy forbids requests to a network.

    Args:
        body: its markup; panels may be side by side in `<div class="panels">`.
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
    scripts = ["panels.js", *needed] if needed else []
    parts += [f"<script>\n{_inside(script(name))}</script>" for name in scripts]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head>\n<body>"
        f"{body}{''.join(parts)}</body></html>\n"
    )


def table_html(heads: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """A table of escaped text; None is an empty cell, and the first cell of a row is its name."""
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
    spec = find_spec(package)  # does not import it
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"pages need the package {package}; pip install {package}")
    path = Path(spec.submodule_search_locations[0]) / folder / name
    if not path.is_file():
        raise InputError(
            f"the installed {package} has no {name}; pip install -U {package}", path=str(path)
        )
    text = path.read_text("utf-8")
    if name == "molviewspec.js":  # a module, made a plain script, which also works inline
        code, _, exported = text.rpartition("export{")
        text = f"(()=>{{{code}globalThis.MolViewSpec={exported.partition(' as default')[0]}}})();"
    return text


def _inside(text: str) -> str:
    """A script escaped for an element of a page."""
    return text.replace("</script", "<\\/script")


def _plain(value: Any) -> Any:
    """A JSON-ready value: arrays as lists, numbers that are not finite as None."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
