"""Template hits -> the template features of a chain (AF2 SI 1.2.3)."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from evofeed.base.errors import TemplateError
from evofeed.base.shapes import Float, UInt8
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.hits import TemplateHit
from evofeed.featurize.records.template_library import TemplateLibrary
from evofeed.featurize.records.template_match import match_hit
from evofeed.featurize.structures.structure import Chain
from evofeed.protein.residues import ATOM37_NUM, ATOM_ORDER, GAP, MSA_LETTER_TO_RESTYPE

HIT_NAME: Final = re.compile(r"([A-Za-z0-9]{4})_([A-Za-z0-9.]+)")
_MIN_LENGTH: Final = 10
_MIN_ATOMS: Final = 5
"""Alanine's: a template with fewer atoms has no information."""
_MAX_CA_STEP: Final = 150.0
"""Ångström between neighbours; beyond it the entry is nonsense."""


@dataclass(frozen=True, slots=True)
class TemplateQuery:
    """The chain to find templates for.

    Attributes:
        entry_id: PDB id of its own entry, '' if it has none.
        release_date: ISO, '' if unknown.
    """

    sequence: str
    entry_id: str = ""
    release_date: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A featurized template at the query's positions.

    Attributes:
        aatype: restype codes, gap where no residue is aligned to the query.
        positions: ångström, minus `center`; zeros where there is no atom.
        mask: 1 where there is an atom.
        center: mean of all atoms of the template's chain.
        sum_probs: hhsearch's confidence, 0 from hmmsearch.
        name: `<pdb id>_<chain>`.
        sequence: letters at the query's positions.
        release_date: ISO, '' if unknown.
    """

    aatype: UInt8[np.ndarray, " L"]
    positions: Float[np.ndarray, "L 37 3"]
    mask: UInt8[np.ndarray, "L 37"]
    center: Float[np.ndarray, "3"]
    sum_probs: float
    name: str
    sequence: str
    release_date: str


def featurize_templates(
    hits: Sequence[TemplateHit],
    query: TemplateQuery,
    library: TemplateLibrary,
    config: FeaturizeConfig,
) -> tuple[list[Template], list[str]]:
    """The best templates among the hits, and notes on hits that were passed over.

    Hits that pass the prefilter are taken by `sum_probs`, equal ones in their order, up to
    `max_templates` with different aligned sequences. A hit that cannot be used is counted with
    its reason, never fatal.
    """
    cutoff = template_cutoff(query, config)
    reasons: Counter[str] = Counter()
    examples: dict[str, str] = {}

    def skip(hit: TemplateHit, reason: str) -> None:
        reasons[reason] += 1
        examples.setdefault(reason, hit.name[:12].split(" ")[0])

    passed = []
    for hit in hits:
        reason = prefilter(hit, query, library, cutoff, config)
        if reason:
            skip(hit, reason)
        else:
            passed.append(hit)
    passed.sort(key=lambda hit: hit.sum_probs or 0.0, reverse=True)
    templates: dict[str, Template] = {}
    for hit in passed:
        if len(templates) >= config.max_templates:
            break
        try:
            template = build_template(hit, query, library, cutoff, config)
        except TemplateError as error:
            skip(hit, error.message)
            continue
        if template.sequence in templates:
            skip(hit, "same aligned sequence as a better hit")
        templates.setdefault(template.sequence, template)
    dropped = [
        f"{count} template hit{'s' * (count > 1)} passed over, e.g. {examples[reason]}: {reason}"
        for reason, count in sorted(reasons.items())
    ]
    return list(templates.values()), dropped


def template_cutoff(query: TemplateQuery, config: FeaturizeConfig) -> str:
    """Latest ISO release date a template of this query may have."""
    if config.released_before_days is None or not query.release_date:
        return config.max_template_date
    before = dt.timedelta(days=config.released_before_days)
    try:
        latest = dt.date.fromisoformat(query.release_date) - before
    except (ValueError, OverflowError):
        return config.max_template_date
    return min(config.max_template_date, latest.isoformat())


def prefilter(
    hit: TemplateHit,
    query: TemplateQuery,
    library: TemplateLibrary,
    cutoff: str,
    config: FeaturizeConfig,
) -> str:
    """The reason a hit is rejected before its structure is read; '' if it passes."""
    name = HIT_NAME.match(hit.name)
    if name is None:
        return "its name is not <pdb id>_<chain>"
    pdb_id = library.current_id(name[1].lower())
    length = len(query.sequence)
    if library.release_dates.get(pdb_id, "") > cutoff:
        return "released too late"
    if config.exclude_same_pdb and pdb_id == query.entry_id.lower():
        return "the query's own entry"
    if hit.aligned_cols / length <= config.min_align_ratio:
        return "too few aligned columns"
    sequence = hit.hit_sequence.replace("-", "")
    if len(sequence) / length > config.max_subsequence_ratio and sequence in query.sequence:
        return "a piece of the query itself"
    if len(sequence) < _MIN_LENGTH:
        return "too short"
    return ""


def build_template(
    hit: TemplateHit,
    query: TemplateQuery,
    library: TemplateLibrary,
    cutoff: str,
    config: FeaturizeConfig,
) -> Template:
    """The template of a hit: its residues and atoms at the query's positions.

    Raises:
        TemplateError: the hit cannot be used; says why.
    """
    name = HIT_NAME.match(hit.name)
    assert name is not None
    pdb_id = library.current_id(name[1].lower())
    structure = library.structure(pdb_id)
    release_date = structure.release_date
    if structure.is_deposition:  # months before the release: does not prove the cutoff
        release_date = library.release_dates.get(pdb_id, "")
    if not release_date:
        note = ", only when it was deposited" if structure.is_deposition else ""
        raise TemplateError(
            f"its entry does not say when it was released{note}; mmcif_cache.json next to it may"
        )
    if release_date > cutoff:
        raise TemplateError("released too late")
    match = match_hit(hit, name[2], query.sequence, structure, config)
    chain = structure.chain(match.chain_id)
    positions, center = _centred(chain, config.whole_chain)
    num_res = len(query.sequence)
    atom_positions = np.zeros([num_res, ATOM37_NUM, 3], np.float32)
    mask = np.zeros([num_res, ATOM37_NUM], np.uint8)
    atom_positions[match.query] = positions[match.template]
    mask[match.query] = chain.mask[match.template]
    if mask.sum() < _MIN_ATOMS:
        raise TemplateError("no atom faces the query")
    letters = np.full(num_res, ord("-"), np.uint8)
    letters[match.query] = np.frombuffer(match.letters.encode("ascii"), np.uint8)
    aatype = MSA_LETTER_TO_RESTYPE[letters]
    if (aatype > GAP).any():
        raise TemplateError("a letter that is not a residue")
    return Template(
        aatype=aatype,
        positions=atom_positions,
        mask=mask,
        center=center,
        sum_probs=hit.sum_probs or 0.0,
        name=f"{pdb_id}_{match.chain_id}",
        sequence=letters.tobytes().decode("ascii"),
        release_date=release_date,
    )


def _centred(
    chain: Chain, across_gaps: bool
) -> tuple[Float[np.ndarray, "P 37 3"], Float[np.ndarray, "3"]]:
    """Atoms centred on their mean, as in AF2 and OpenFold, and that mean.

    Checks the CA distance of resolved neighbours, with `across_gaps` also over unresolved residues.
    """
    alpha = ATOM_ORDER["CA"]
    resolved = np.flatnonzero(chain.mask[:, alpha])
    steps = np.linalg.norm(np.diff(chain.positions[resolved, alpha], axis=0), axis=-1)
    if (steps[(np.diff(resolved) == 1) | across_gaps] > _MAX_CA_STEP).any():
        raise TemplateError("neighbouring residues are further apart than 150 ångström")
    present = chain.mask > 0
    if not present.any():
        raise TemplateError("no atom of the chain is observed")
    positions = chain.positions.copy()
    center = positions[present].mean(axis=0)
    positions[present] -= center
    return positions, center


def template_fields(templates: Sequence[Template]) -> dict[str, Any]:
    """Templates as fields of a chain record; empty without templates."""
    if not templates:
        return {}
    return {
        "template_aatype": np.stack([t.aatype for t in templates]),
        "template_all_atom_positions": np.stack([t.positions for t in templates]),
        "template_all_atom_mask": np.stack([t.mask for t in templates]),
        "template_center": np.stack([t.center for t in templates]),
        "template_sum_probs": np.array([t.sum_probs for t in templates], np.float32),
        "template_domain_names": tuple(t.name for t in templates),
        "template_sequence": tuple(t.sequence for t in templates),
        "template_release_date": tuple(t.release_date for t in templates),
    }
