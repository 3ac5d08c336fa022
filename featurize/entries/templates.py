"""Templates of an alignment's query: hits of its folder on the structures of a library.

OpenFold3's are taken by the rules of chains (`records/templates.py`), Protenix's by its own, all
whatever their dates: which of them an entry may have is decided when it is read.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.entries.openfold3_templates import cached_templates, template_cache
from evofeed.featurize.entries.protenix_templates import protenix_hits
from evofeed.featurize.entries.targets import representative
from evofeed.featurize.formats.hits import parse_hhr, parse_hmmsearch
from evofeed.featurize.formats.reading import file_ref, plain, read_bytes
from evofeed.featurize.inputs.sources import role_of
from evofeed.featurize.records.template_library import FolderUse, TemplateLibrary
from evofeed.featurize.records.templates import Template, TemplateQuery, featurize_templates
from evofeed.protein.alignment import Alignment, Templates
from evofeed.protein.components import ComponentTable
from evofeed.protein.residues import ATOM_ORDER, RESTYPES

RULES: Final = FeaturizeConfig(
    max_template_date="9999-12-31", released_before_days=None, exclude_same_pdb=False
)
_ATOMS: Final = [ATOM_ORDER[name] for name in ("N", "CA", "C", "CB")]


def holds_hits(path: str) -> bool:
    """Whether a file of this name holds template hits: hhsearch's, or hmmsearch's."""
    name = plain(Path(path).name)
    return name == "hmmsearch.a3m" or role_of(name, RULES) in ("hhr", "hmmsearch")


def with_templates(
    alignment: Alignment,
    files: Sequence[str],
    folder: str,
    projects: Collection[str],
    components: ComponentTable,
    use: FolderUse,
    run: str = "",
) -> tuple[Alignment, tuple[str, ...]]:
    """The alignment with the templates of its hits, and which hits were passed over, in words.

    Args:
        files: of the query; those without hits are passed over.
        folder: mmCIF files of the templates' entries, or OpenFold3's caches of templates.
        components: the dictionary, for mmCIF files beside OpenFold3's caches.
        use: is told what was needed of the folder.
        run: of the job, for this process may have read files for an earlier one.

    Raises:
        InputError: a file of hits, a cache or a table of entries is none; names it.
    """
    query, of_hhr, of_hmm = alignment.query, [], []
    for file in filter(holds_hits, files):
        data = read_bytes(file_ref(file))
        if plain(file).endswith(".hhr"):
            of_hhr += parse_hhr(data, path=file)
        else:
            of_hmm += parse_hmmsearch(data, query, path=file)
    templates, hits = None, None
    notes: list[str] = []
    if "openfold3" in projects and (cache := template_cache(folder, representative(files[0]), use)):
        templates, notes = cached_templates(cache, len(query), components, use)
    elif "openfold3" in projects:
        about, library = TemplateQuery(query), _library(folder, run)
        library.use = use
        found, notes = featurize_templates(of_hhr + of_hmm, about, library, RULES)
        if found:
            templates = Templates(
                name=tuple(one.name for one in found),
                date=tuple(one.release_date for one in found),
                restype=np.stack([one.aatype for one in found]),
                position=np.stack([_backbone(one) for one in found]),
            )
    if "protenix" in projects and (of_hhr or of_hmm):
        hits, passed_over = protenix_hits(of_hhr or of_hmm, query, folder, use, run)
        notes += passed_over
    return alignment.with_templates(templates, hits), tuple(notes)


@functools.lru_cache(maxsize=1)
def _library(folder: str, run: str) -> TemplateLibrary:
    return TemplateLibrary(folder, RULES)


def _backbone(template: Template) -> np.ndarray:
    positions = np.where(template.mask[..., None] > 0, template.positions, np.float32(np.nan))
    atoms = positions[:, _ATOMS]
    glycine = template.aatype == RESTYPES.index("G")
    atoms[glycine, 3] = atoms[glycine, 1]
    return atoms
