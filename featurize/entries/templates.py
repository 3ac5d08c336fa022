"""Templates of an alignment's query: hits of its folder on the structures of a library.

Hits are taken by the rules of chains (`records/templates.py`), whatever their dates: which of them
an entry may have is decided when it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.hits import parse_hhr, parse_hmmsearch
from evofeed.featurize.formats.reading import file_ref, plain, read_bytes
from evofeed.featurize.inputs.sources import ChainSource, role_of
from evofeed.featurize.records.template_library import template_library
from evofeed.featurize.records.templates import Template, TemplateQuery, featurize_templates
from evofeed.protein.alignment import Alignment, Templates
from evofeed.protein.residues import ATOM_ORDER, RESTYPES

_RULES: Final = FeaturizeConfig(
    max_template_date="9999-12-31", released_before_days=None, exclude_same_pdb=False
)
_ATOMS: Final = [ATOM_ORDER[name] for name in ("N", "CA", "C", "CB")]


def holds_hits(path: str) -> bool:
    """Whether a file of this name holds template hits: hhsearch's, or hmmsearch's Stockholm."""
    return role_of(plain(Path(path).name), _RULES) in ("hhr", "hmmsearch")


def with_templates(
    alignment: Alignment, files: Sequence[str], folder: str
) -> tuple[Alignment, tuple[str, ...]]:
    """The alignment with the templates of its hits, and which hits were passed over, in words.

    Args:
        files: of the query; those without hits are passed over.
        folder: mmCIF files of the templates' entries.

    Raises:
        TemplateError: a file of hits is none; names file and line.
    """
    query, hits = alignment.query, []
    for file in filter(holds_hits, files):
        data = read_bytes(file_ref(file))
        if plain(file).endswith(".hhr"):
            hits += parse_hhr(data, path=file)
        else:
            hits += parse_hmmsearch(data, query, path=file)
    library = template_library(ChainSource("", template_mmcif_dir=folder), _RULES)
    assert library is not None
    found, passed_over = featurize_templates(hits, TemplateQuery(query), library, _RULES)
    if not found:
        return alignment, tuple(passed_over)
    templates = Templates(
        name=tuple(one.name for one in found),
        date=tuple(one.release_date for one in found),
        restype=np.stack([one.aatype for one in found]),
        position=np.stack([_backbone(one) for one in found]),
    )
    return alignment.with_templates(templates), tuple(passed_over)


def _backbone(template: Template) -> np.ndarray:
    positions = np.where(template.mask[..., None] > 0, template.positions, np.float32(np.nan))
    atoms = positions[:, _ATOMS]
    glycine = template.aatype == RESTYPES.index("G")
    atoms[glycine, 3] = atoms[glycine, 1]
    return atoms
