"""The chain of a hit in its structure, and its residues aligned to the query."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from evofeed.base.errors import TemplateError
from evofeed.base.shapes import Int
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.hits import TemplateHit
from evofeed.featurize.records.realign import aligned_positions
from evofeed.featurize.structures.structure import Structure

_MIN_IDENTITY: Final = 0.9
_REALIGN_LENGTHS: Final = (6, 20_000)
"""Residues: kalign, so OpenFold, needs 6; the time grows with the product of the lengths."""


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A hit located in its structure.

    Attributes:
        query: positions in the query.
        template: position in the chain aligned to each of them.
        letters: the template's letter at each of them.
    """

    chain_id: str
    query: Int[np.ndarray, " A"]
    template: Int[np.ndarray, " A"]
    letters: str


def match_hit(
    hit: TemplateHit,
    chain_id: str,
    query_sequence: str,
    structure: Structure,
    config: FeaturizeConfig,
) -> Match:
    """Locates a hit's sequence in its structure and maps the query onto it.

    Tried in this order: the named chain has the sequence; any chain has it; any
    chain has it with X for unknown letters on either side; the named chain (or
    the only one) aligns to it with at least 90 % identity.

    Raises:
        TemplateError: none of these succeeds; says what was tried.
    """
    if config.whole_chain:
        target = structure.sequences[_only_or_named(chain_id, structure, config)]
        template = _realign(query_sequence, target, hit.name, 0.0)
        query = np.flatnonzero(template >= 0)
        letters = "".join(target[i] for i in template[query].tolist())
        return Match(chain_id, query, template[query], letters)
    query, piece = _aligned_pairs(hit, query_sequence, config)
    sequence = hit.hit_sequence.replace("-", "")
    location = _find_sequence(sequence, chain_id, structure.sequences)
    if location is not None:
        name, offset = location
        letters = "".join(sequence[i] for i in piece.tolist())
        return Match(name, query, piece + offset, letters)
    name = _only_or_named(chain_id, structure, config)
    template = _realign(sequence, structure.sequences[name], hit.name, _MIN_IDENTITY)[piece]
    matched = (template >= 0) | config.unmatched_to_last  # below, -1 is the last residue
    full = structure.sequences[name]
    letters = "".join(full[i] for i in template[matched].tolist())
    return Match(name, query[matched], template[matched], letters)


def _aligned_pairs(
    hit: TemplateHit, query_sequence: str, config: FeaturizeConfig
) -> tuple[Int[np.ndarray, " A"], Int[np.ndarray, " A"]]:
    """Positions in the query and in the hit's ungapped sequence, where both have a residue."""
    query_index = np.array(hit.indices_query, np.int64)
    hit_index = np.array(hit.indices_hit, np.int64)
    size = min(len(query_index), len(hit_index))
    query_index, hit_index = query_index[:size], hit_index[:size]
    if not (query_index >= 0).any() or not (hit_index >= 0).any():
        raise TemplateError(f"no aligned residue in {hit.name[:12]!r}")
    start = _query_start(hit, int(query_index[query_index >= 0].min()), query_sequence, config)
    aligned = (query_index >= 0) & (hit_index >= 0)
    query = query_index[aligned] - query_index[query_index >= 0].min() + start
    piece = hit_index[aligned] - hit_index[hit_index >= 0].min()
    length = len(hit.hit_sequence) - hit.hit_sequence.count("-")
    # OpenFold's -1 for "not found" makes the first residue the query's last; kept for its rules.
    first = -1 if config.locate_query == "search" else 0
    inside = (piece < length) & (query < len(query_sequence)) & (query >= first)
    return query[inside], piece[inside]


def _query_start(
    hit: TemplateHit, numbered: int, query_sequence: str, config: FeaturizeConfig
) -> int:
    letters = hit.query.replace("-", "")
    if config.locate_query == "numbering" and query_sequence.startswith(letters, numbered):
        return numbered
    start = query_sequence.find(letters)
    return numbered if start < 0 and config.locate_query == "numbering" else start


def _find_sequence(sequence: str, chain_id: str, chains: dict[str, str]) -> tuple[str, int] | None:
    for name in (chain_id, *chains):
        offset = chains.get(name, "").find(sequence)
        if offset >= 0:
            return name, offset
    pattern = re.compile("".join("." if c == "X" else f"[{re.escape(c)}X]" for c in sequence))
    for name, letters in chains.items():
        match = pattern.search(letters)
        if match:
            return name, match.start()
    return None


def _only_or_named(chain_id: str, structure: Structure, config: FeaturizeConfig) -> str:
    if chain_id in structure.sequences:
        return chain_id
    if config.lone_chain and len(structure.sequences) == 1:
        return next(iter(structure.sequences))
    raise TemplateError(
        f"no protein chain {chain_id!r} in {structure.file_id}, only "
        f"{', '.join(structure.sequences)}"
    )


def _realign(old: str, new: str, name: str, min_identity: float) -> Int[np.ndarray, " P"]:
    """Position in `new` of each letter of `old`, -1 where it has none.

    Raises:
        TemplateError: less of the shorter one is identical, or the lengths are out of range.
    """
    shortest, longest = _REALIGN_LENGTHS
    if min(len(old), len(new)) < shortest or max(len(old), len(new)) > longest:
        raise TemplateError(
            f"{name[:12]!r} is not realigned: {len(old)} residues to {len(new)}, "
            f"want {shortest} to {longest}"
        )
    positions = aligned_positions(old, new)
    pairs = zip(old, positions.tolist(), strict=True)
    identity = sum(i >= 0 and a == new[i] for a, i in pairs) / min(len(old), len(new))
    if identity < min_identity:
        raise TemplateError(f"{name[:12]!r} is only {identity:.0%} identical to its structure")
    return positions
