"""Where a hit is in its structure: the chain, and which residue faces which."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from evofeed.base.errors import TemplateError
from evofeed.base.shapes import Int
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.hits import TemplateHit
from evofeed.featurize.records.realign import onto
from evofeed.featurize.structures.structure import Structure

_MIN_IDENTITY: Final = 0.9
_REALIGNED: Final = (6, 20_000)
"""Residues: kalign, so OpenFold, wants 6; the time goes by the product of the lengths."""


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A hit on its structure.

    Attributes:
        query: positions in the query.
        template: the position in the chain facing each of them.
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
    """Find a hit's sequence in its structure and map the query onto it.

    Tried in this order: the named chain has the sequence; any chain has it; any
    chain has it with X for unknown letters on either side; the named chain (or
    the only one) aligns to it with at least 90 % identity.

    Raises:
        TemplateError: none of that; says what was tried.
    """
    if config.whole_chain:
        target = structure.sequences[_only_or_named(chain_id, structure, config)]
        template = _realign(query_sequence, target, hit.name, 0.0)
        query = np.flatnonzero(template >= 0)
        letters = "".join(target[i] for i in template[query].tolist())
        return Match(chain_id, query, template[query], letters)
    query, piece = _facing(hit, query_sequence, config)
    sequence = hit.hit_sequence.replace("-", "")
    found = _find(sequence, chain_id, structure.sequences)
    if found is not None:
        name, offset = found
        letters = "".join(sequence[i] for i in piece.tolist())
        return Match(name, query, piece + offset, letters)
    name = _only_or_named(chain_id, structure, config)
    template = _realign(sequence, structure.sequences[name], hit.name)[piece]
    there = (template >= 0) | config.unmatched_to_last  # -1 is the last one in what follows
    full = structure.sequences[name]
    letters = "".join(full[i] for i in template[there].tolist())
    return Match(name, query[there], template[there], letters)


def _facing(
    hit: TemplateHit, query_sequence: str, config: FeaturizeConfig
) -> tuple[Int[np.ndarray, " A"], Int[np.ndarray, " A"]]:
    """Query positions and positions in the hit's piece of sequence, where both have one."""
    of_query = np.array(hit.indices_query, np.int64)
    of_hit = np.array(hit.indices_hit, np.int64)
    size = min(len(of_query), len(of_hit))
    of_query, of_hit = of_query[:size], of_hit[:size]
    if not (of_query >= 0).any() or not (of_hit >= 0).any():
        raise TemplateError(f"no aligned residue in {hit.name[:12]!r}")
    start = _query_start(hit, int(of_query[of_query >= 0].min()), query_sequence, config)
    both = (of_query >= 0) & (of_hit >= 0)
    query = of_query[both] - of_query[of_query >= 0].min() + start
    piece = of_hit[both] - of_hit[of_hit >= 0].min()
    length = len(hit.hit_sequence) - hit.hit_sequence.count("-")
    # OpenFold's -1 for "not found" makes the first residue the query's last; so be it there.
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


def _find(sequence: str, chain_id: str, chains: dict[str, str]) -> tuple[str, int] | None:
    for name in (chain_id, *chains):
        offset = chains.get(name, "").find(sequence)
        if offset >= 0:
            return name, offset
    pattern = re.compile("".join("." if c == "X" else f"[{re.escape(c)}X]" for c in sequence))
    for name, letters in chains.items():
        found = pattern.search(letters)
        if found:
            return name, found.start()
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


def _realign(old: str, new: str, name: str, least: float = _MIN_IDENTITY) -> Int[np.ndarray, " P"]:
    """Position in `new` of each letter of `old`, -1 where it has none.

    Raises:
        TemplateError: less of the shorter one is identical; they are too short or long.
    """
    shortest, longest = _REALIGNED
    if min(len(old), len(new)) < shortest or max(len(old), len(new)) > longest:
        raise TemplateError(
            f"{name[:12]!r} is not realigned: {len(old)} residues to {len(new)}, "
            f"want {shortest} to {longest}"
        )
    facing = onto(old, new)
    same = sum(i >= 0 and letter == new[i] for letter, i in zip(old, facing.tolist(), strict=True))
    if same / min(len(old), len(new)) < least:
        raise TemplateError(
            f"{name[:12]!r} is only {same / min(len(old), len(new)):.0%} identical to its structure"
        )
    return facing
