"""Parts of a snapshot under names of their own: filtered, and divided so that no cluster is torn.

No shard is written: a part is an index of the same shards. What is left out is in its
manifest with the reason, so `dataset_card` tells it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from evofeed.base.errors import DatasetMissing, TooSimilar
from evofeed.store.assemblies import kept_assemblies
from evofeed.store.dataset import Dataset
from evofeed.store.history import Snapshot
from evofeed.store.likeness import MIN_ALIGNED, Clusters, Pair, connected, overlap, similar_pairs
from evofeed.store.manifest import canonical_json, check_name
from evofeed.store.refs import move_ref, read_ref
from evofeed.store.writer import with_cluster_sizes, write_snapshot

_SHOWN: Final = 10
_SHOWN_FROM: Final = 0.3
"""Identity from which the strongest pairs are told even if more is allowed."""
_PDB: Final = re.compile(r"[0-9][a-z0-9]{3}")
REST: Final = "train"
"""Where `split_chains` puts what no share asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which chains a training set takes. What is unknown of a chain does not pass a limit on it."""

    released_from: str = ""
    """ISO date of the first day; empty is any."""
    released_before: str = ""
    """ISO date of the first day that is too late; empty is any."""
    max_resolution: float | None = None
    """Ångström; chains without one (NMR, predictions) do not pass."""
    min_residues: int = 0
    max_residues: int | None = None
    min_alignments: int = 0
    """Rows of the alignment, the query included."""
    max_aa_fraction: float | None = None
    """Share of the commonest residue: AF2 takes chains up to 0.8 (SI 1.2.5)."""
    with_structure: bool = False
    """Only chains with a structure."""

    def __post_init__(self) -> None:
        for name in ("released_from", "released_before"):
            text = getattr(self, name)
            if text and not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
                raise ValueError(f"{name} must be a date like 2018-04-30, not {text!r}")

    def why_not(self, row: Mapping[str, Any]) -> str:
        """Why the chain of a row of the index does not pass, '' if it does."""
        date, resolution = row["release_date"], row["resolution"]
        residues, rows = row["num_res"], row["num_alignments"]
        most_residues = math.inf if self.max_residues is None else self.max_residues
        most_fraction = math.inf if self.max_aa_fraction is None else self.max_aa_fraction
        late = bool(self.released_before) and (not date or date >= self.released_before)
        coarse = self.max_resolution is not None and not 0 < resolution <= self.max_resolution
        known = f"resolution {resolution:.4g} Å" if resolution else "resolution unknown"
        tests = (
            (date < self.released_from, f"released {date or 'nobody knows'}"),
            (late, f"released {date or 'nobody knows when'}"),
            (coarse, known),
            (not self.min_residues <= residues <= most_residues, f"{residues} residues"),
            (rows < self.min_alignments, f"{rows} alignment rows"),
            (
                row["max_aa_fraction"] > most_fraction,
                f"{row['max_aa_fraction']:.3g} of it one residue",
            ),
            (self.with_structure and not row["has_structure"], "no structure"),
        )
        return next((why for fails, why in tests if fails), "")


def select_chains(
    uri: str,
    into: str,
    selection: Selection | None = None,
    *,
    snapshot: str = "main",
    apart_from: Sequence[Dataset] = (),
    clusters: Clusters | None = None,
) -> Snapshot:
    """The chains of a snapshot that pass, under the ref `into`; the others with their reasons.

    Args:
        into: the ref to make or move.
        apart_from: other datasets: chains that are there, or in a cluster with one there, are
            left out, and so are those in no cluster if clusters are given.
        clusters: at a sequence identity of your choice; the sizes in the new index count what
            is in it.

    Raises:
        DatasetMissing: no such dataset or snapshot.
        RefConflict: somebody else moved `into` meanwhile.
    """
    base, selection = Dataset.open(uri, snapshot), selection or Selection()
    reasons = {
        row["chain_id"]: why
        for row in base.index.drop_columns(["column_offsets"]).to_pylist()
        if (why := selection.why_not(row))
    }
    for other in apart_from:
        found = overlap(base, other, clusters)
        reasons = {mine: f"like {theirs} of {other.uri}" for mine, theirs in found.shared} | reasons
        unknown = set(found.unclustered) & set(base)
        reasons = dict.fromkeys(unknown, "in no cluster: its similarity is unknown") | reasons
    config = {"of": base.digest, "apart_from": [other.digest for other in apart_from]}
    given = {
        k: v for k, v in dataclasses.asdict(selection).items() if v not in ("", None, False, 0)
    }
    return _part(base, into, lambda name: reasons.get(name, ""), {**config, **given}, clusters)


def split_chains(
    uri: str,
    clusters: Clusters | None,
    shares: Mapping[str, float],
    *,
    snapshot: str = "main",
    seed: int = 0,
    released: tuple[str, str] | None = None,
    max_identity: float = 1.0,
    allow_similar: bool = False,
) -> dict[str, Snapshot]:
    """A snapshot divided by cluster, by date, or by both: no two parts have chains of one cluster,
    of one entry, or of one complex; a part has the entries and complexes whose chains it has.

    Clusters are taken in an order that only their members and `seed` decide; each part is
    filled until it has its share of the chains. A cluster that would make a part more than twice
    its share goes on to the next. Chains in several clusters join these.

    By date, `train` has the chains that were released before it, and the part that is named with it
    those of clusters in which every chain is younger, up to its share if it has one. The
    younger chains of other clusters are in no part.

    Args:
        clusters: at a sequence identity of your choice. Chains in none are in no part. None
            divides by date alone.
        shares: fraction of the chains by name of the ref, such as `{"valid": 0.1}`; the
            rest goes to `train`.
        released: a part's name and the ISO date of its first day.
        max_identity: the parts are searched against each other (mmseqs), and nothing is published
            if two of their chains are more alike; 1 searches nothing. The strongest pairs
            go into the manifests.

    Raises:
        ValueError: a share is none, they leave nothing, or every cluster is too large for one.
        TooSimilar: chains of two parts are more alike than allowed.
        InputError: mmseqs is not there.
        RefConflict: somebody else moved a ref meanwhile.
    """
    Selection(released_from=(released[1] or "no date") if released else "")  # refuses what is none
    wanted = {**({released[0]: 1.0} if released else {}), **shares}
    if clusters is None and (shares.keys() - {released and released[0]} or not released):
        raise ValueError("shares need clusters: --clusters FILE, a sequence cluster a line")
    spare = sum(shares.values()) < 1 and min(shares.values(), default=1) > 0
    if not wanted or not spare or REST in wanted:
        raise ValueError(f"shares {dict(shares)}: give fractions above 0, together below 1")
    base = Dataset.open(uri, snapshot)
    names = list(base)
    groups = [[name] for name in names]
    if clusters is not None:
        groups = _groups(names, clusters, _whole(base))
    order = sorted(groups, key=lambda g: hashlib.sha256(f"{seed} {min(g)}".encode()).digest())
    total = sum(map(len, groups))
    home: dict[str, str] = {}
    alone = "in no cluster: its similarity is unknown"
    left_out = dict.fromkeys(set(names) - {name for group in groups for name in group}, alone)
    if released:
        order = _by_date(base, order, released[1], home, left_out)
    filled: Counter[str] = Counter()
    for group in order:
        open_parts = (
            name
            for name, share in wanted.items()
            if filled[name] < share * total and filled[name] + len(group) <= 2 * share * total
        )
        part = next(open_parts, REST)
        if released and part == REST:
            left_out |= dict.fromkeys(group, f"released from {released[1]} on, in no part's share")
            continue
        home |= dict.fromkeys(group, part)
        filled[part] += len(group)
    if empty := [f"{name}={share:g}" for name, share in wanted.items() if not filled[name]]:
        raise ValueError(
            f"share {', '.join(empty)} of {total} chains: each cluster has more than twice as "
            "many; take a larger share, or clusters at a higher identity"
            if not released
            else f"no chain of the clusters that are released from {released[1]} on"
        )
    likeness = _likeness(base, home, max_identity, allow_similar) if max_identity < 1 else {}

    def why(part: str) -> Callable[[str], str]:
        def of(name: str) -> str:
            there = home.get(name)
            return left_out[name] if there is None else "" if there == part else f"in {there}"

        return of

    config: dict[str, Any] = {"of": base.digest, "seed": seed, "shares": dict(shares), **likeness}
    config |= {"released": {released[0]: released[1]}} if released else {}
    return {
        part: _part(base, part, why(part), {**config, "part": part}, clusters)
        for part in (*wanted, REST)
    }


def _by_date(
    base: Dataset,
    groups: list[list[str]],
    date: str,
    home: dict[str, str],
    left_out: dict[str, str],
) -> list[list[str]]:
    """Groups that are younger than a date as a whole; what is older is at home in `train`."""
    dates = dict(zip(base, base.index["release_date"].to_pylist(), strict=True))
    young = []
    for group in groups:
        older = [name for name in group if dates[name] and dates[name] < date]
        home |= dict.fromkeys(older, REST)
        unknown = [name for name in group if not dates[name]]
        left_out |= dict.fromkeys(unknown, "released nobody knows when")
        newer = [name for name in group if dates[name] >= date and name not in unknown]
        if older:
            like = f"released from {date} on, and like {older[0]} in {REST}"
            left_out |= dict.fromkeys(newer, like)
        elif newer and not unknown:
            young.append(newer)
        else:
            left_out |= dict.fromkeys(newer, "in a cluster with chains of an unknown date")
    return young


def _likeness(
    base: Dataset, home: Mapping[str, str], max_identity: float, allow_similar: bool
) -> dict[str, Any]:
    """What a search of the parts against each other finds, for the manifests.

    Raises:
        TooSimilar: more than is allowed.
    """
    sequences: dict[str, dict[str, str]] = {}
    for name, part in home.items():
        sequences.setdefault(part, {})[name] = base[name].sequence
    floor = min(max_identity, _SHOWN_FROM)
    pairs: list[Pair] = []
    for one, other in itertools.combinations(sorted(sequences, key=lambda p: p == REST), 2):
        pairs += similar_pairs(sequences[one], sequences[other], floor)
    pairs.sort(key=lambda pair: -pair.identity)
    too_much = sum(pair.identity > max_identity for pair in pairs)
    if too_much and not allow_similar:
        first = pairs[0]
        raise TooSimilar(
            f"{too_much} pairs of chains in two parts are alike at more than {max_identity:.0%} "
            f"over {MIN_ALIGNED} residues, {first.query} and {first.target} at "
            f"{first.identity:.0%} over {first.aligned}; nothing is published: cluster at a lower "
            "identity or coverage, or allow it (--allow-similar)"
        )
    strongest = [list(pair) for pair in pairs[:_SHOWN]]
    return {"max_identity": max_identity, "pairs_above": too_much, "strongest_pairs": strongest}


def _whole(base: Dataset) -> list[list[str]]:
    """Chains that no split tears apart: those of one entry, and those of one complex."""
    entries = set(base.entries.table["entry"].to_pylist())
    homes: dict[str, list[str]] = {}
    for name in base:
        entry = name.rpartition("_")[0].lower()
        if entry in entries or _PDB.fullmatch(entry):
            homes.setdefault(entry, []).append(name)
    return [*homes.values(), *base.assemblies.table["chain_ids"].to_pylist()]


def _groups(
    names: Iterable[str], clusters: Clusters, together: Iterable[Sequence[str]] = ()
) -> list[list[str]]:
    """Chains that share a cluster, or are `together`, directly or by way of others."""
    known = {name: clusters.of(name) for name in names if clusters.of(name)}
    first: dict[int, str] = {}
    pairs = [(first.setdefault(n, name), name) for name, numbers in known.items() for n in numbers]
    for chains in together:
        pairs += itertools.pairwise(name for name in chains if name in known)
    return connected(known, pairs)


def _part(
    base: Dataset,
    into: str,
    why_not: Callable[[str], str],
    settings: dict[str, Any],
    clusters: Clusters | None,
) -> Snapshot:
    check_name(into, "ref")
    names = list(base)
    reasons = [why_not(name) for name in names]
    table = base.index.filter(pa.array([not why for why in reasons], pa.bool_()))
    table = table.combine_chunks()
    if clusters is not None:
        groups = _groups(table["chain_id"].to_pylist(), clusters)
        sizes = {name: len(group) for group in groups for name in group}
        table = with_cluster_sizes(table, sizes)
    complexes, _ = kept_assemblies(base, table)
    kept = set(table["chain_id"].to_pylist())
    torn = {name.rpartition("_")[0].lower() for name in set(names) - kept}
    entries = base.entries.part({name.rpartition("_")[0].lower() for name in kept} - torn)
    out = [{"chain_id": n, "reason": why} for n, why in zip(names, reasons, strict=True) if why]
    snapshot = write_snapshot(
        base.storage,
        table,
        base.manifest.shards,
        base=base,
        config={**base.manifest.config, "selection": settings},
        dropped=tuple(sorted([*base.manifest.dropped, *out], key=canonical_json)),
        assemblies=complexes,
        entries=entries,
    )
    try:
        now: str | None = read_ref(base.storage, into).digest
    except DatasetMissing:
        now = None
    if now != snapshot.digest:
        move_ref(base.storage, into, snapshot.digest, now)
    return snapshot
