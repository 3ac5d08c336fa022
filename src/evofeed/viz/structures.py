"""Structures on HTML pages, drawn by Mol*: cartoon, sticks, surface; one or several superposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evofeed.protein.structure_text import Structure, to_mmcif, to_model_cif
from evofeed.viz.document import Panel, panel_html
from evofeed.viz.pages import COLOURS

TRUE_COLOUR = "#9aa5b3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One structure of a panel.

    Attributes:
        name: what it is called there.
        cif: mmCIF text, ModelCIF where it has pLDDT.
        url: or the address it is read from, of the page's own host.
        plddt: whether it can be coloured by pLDDT.
        colour: where several are told apart.
        placed: a rotation `[3, 3]`, row by row, that is multiplied from the right, and a shift.
    """

    name: str
    cif: str = ""
    url: str = ""
    plddt: bool = False
    colour: str = COLOURS[0]
    placed: tuple[tuple[float, ...], tuple[float, ...]] | None = None


def structure_html(models: Sequence[Model], title: str, note: str = "") -> Panel:
    """A panel with structures in one frame, to be turned, restyled, coloured and hidden."""
    if not models:
        return Panel()
    shown = [
        {"name": model.name, "plddt": model.plddt, "colour": model.colour, "placed": model.placed}
        | ({"url": model.url} if model.url else {"cif": model.cif})
        for model in models
    ]
    return panel_html("structure", {"models": shown}, title, note)


def model_of(structure: Structure, name: str, *, plddt: bool, colour: str = COLOURS[0]) -> Model:
    """A structure as part of a panel; `plddt`: its confidence is one."""
    text = to_model_cif(structure) if plddt else to_mmcif(structure)
    return Model(name=name, cif=text, plddt=plddt, colour=colour)
