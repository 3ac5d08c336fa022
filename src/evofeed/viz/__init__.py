"""Pictures: matplotlib writes files (`files`); pages and notebooks have panels (`pages`).

A panel is markup that a notebook displays: a chart, a map, a structure or an alignment.
`page_html` makes a page of several.
"""

from typing import TYPE_CHECKING

from evofeed.base.lazy import names_from

if TYPE_CHECKING:
    from evofeed.viz.document import LATER, SCRIPTS, Panel, page_html, script, table_html
    from evofeed.viz.files import (
        draw_card,
        draw_distogram,
        draw_msa_coverage,
        draw_prediction,
        expected_distances,
    )
    from evofeed.viz.pages import (
        COLOURS,
        FARTHEST,
        MOST_RESIDUES,
        TRUE_COLOUR,
        Curve,
        Model,
        alignment_html,
        bars_html,
        curves_html,
        histogram_html,
        map_html,
        model_of,
        plddt_html,
        structure_html,
        usual_top,
    )

__all__ = [
    "COLOURS",
    "FARTHEST",
    "LATER",
    "MOST_RESIDUES",
    "SCRIPTS",
    "TRUE_COLOUR",
    "Curve",
    "Model",
    "Panel",
    "alignment_html",
    "bars_html",
    "curves_html",
    "draw_card",
    "draw_distogram",
    "draw_msa_coverage",
    "draw_prediction",
    "expected_distances",
    "histogram_html",
    "map_html",
    "model_of",
    "page_html",
    "plddt_html",
    "script",
    "structure_html",
    "table_html",
    "usual_top",
]

__getattr__ = names_from(__name__)
