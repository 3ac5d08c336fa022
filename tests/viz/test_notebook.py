"""A panel in a notebook: a complete page with the scripts and data that it needs."""

from __future__ import annotations

import html
import re

import numpy as np
import pytest
from tests.loader.records import make_record

from evofeed.viz import Model, Panel, alignment_html, map_html, structure_html

CIF = "data_a\nloop_\n_atom_site.id\n1\n"
PANELS = {
    "figure": map_html("m", np.full((600, 600), 3.0), low=0, high=9, unit="Å"),
    "structure": structure_html([Model(name="a", cif=CIF)], "</script><b>"),
    "alignment": alignment_html(make_record("a")),
}


@pytest.mark.parametrize("kind", PANELS)
def test_a_panel_in_a_notebook_has_its_scripts_inside(kind: str) -> None:
    shown = PANELS[kind]._repr_html_()
    page = html.unescape(shown.partition('srcdoc="')[2].rpartition('" style=')[0])
    assert f"data-{kind}=" in page and "<b>" not in page.partition("<script")[0]
    assert ("Plotly.newPlot(container" in page) == (kind == "figure")
    assert ("globalThis.MolViewSpec=" in page) == (kind == "structure")
    assert "default-src 'none'" in page and 'sandbox="allow-scripts"' in shown
    assert not re.findall(r"\s(?:src|href)=", re.sub(r"<script.*?</script>", "", page, flags=re.S))


def test_a_large_map_is_thinned_and_says_so_and_counts_residues_from_one() -> None:
    drawn = html.unescape(PANELS["figure"])
    assert "512 of 600 residues" in drawn and '"x":[1,2,3' in drawn and ",600]" in drawn


def test_no_structure_is_no_panel() -> None:
    assert structure_html([], "a") == "" and isinstance(structure_html([], "a"), Panel)
