"""Templates of an alignment's query: hits of its folder, with the structures of a library.

OpenFold3's follow the rules of chains (`records/templates.py`), Protenix's its own. Dates are
ignored here: those allowed for an entry are selected when it is read.
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


def is_hits_file(path: str) -> bool:
    """True if a file of this name has template hits of hhsearch or hmmsearch."""
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
    """The alignment with the templates of its hits, and notes on hits that were passed over.

    Args:
        files: of the query; those without template hits are skipped.
        folder: mmCIF files of the templates' entries, or OpenFold3's caches of templates.
        components: the dictionary, for mmCIF files next to OpenFold3's caches.
        use: records the files that were read or missing in the folder.
        run: id of the job's run, as this process may have cached files in an earlier one.

    Raises:
        InputError: a file of hits, a cache or a table of entries is damaged; names it.
    """
    query, hhr_hits, hmm_hits = alignment.query, [], []
    for file in filter(is_hits_file, files):
        data = read_bytes(file_ref(file))
        if plain(file).endswith(".hhr"):
            hhr_hits += parse_hhr(data, path=file)
        else:
            hmm_hits += parse_hmmsearch(data, query, path=file)
    templates, protenix = None, None
    notes: list[str] = []
    if "openfold3" in projects and (cache := template_cache(folder, representative(files[0]), use)):
        templates, notes = cached_templates(cache, len(query), components, use)
    elif "openfold3" in projects:
        target, library = TemplateQuery(query), _library(folder, run)
        library.use = use
        chosen, notes = featurize_templates(hhr_hits + hmm_hits, target, library, RULES)
        if chosen:
            templates = Templates(
                name=tuple(template.name for template in chosen),
                date=tuple(template.release_date for template in chosen),
                restype=np.stack([template.aatype for template in chosen]),
                position=np.stack([_backbone(template) for template in chosen]),
            )
    if "protenix" in projects and (hhr_hits or hmm_hits):
        protenix, passed_over = protenix_hits(hhr_hits or hmm_hits, query, folder, use, run)
        notes += passed_over
    return alignment.with_templates(templates, protenix), tuple(notes)


@functools.lru_cache(maxsize=1)
def _library(folder: str, run: str) -> TemplateLibrary:
    return TemplateLibrary(folder, RULES)


def _backbone(template: Template) -> np.ndarray:
    positions = np.where(template.mask[..., None] > 0, template.positions, np.float32(np.nan))
    atoms = positions[:, _ATOMS]
    glycine = template.aatype == RESTYPES.index("G")
    atoms[glycine, 3] = atoms[glycine, 1]
    return atoms
