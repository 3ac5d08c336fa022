"""Subsets of a snapshot under their own refs: filtered, or split so that no cluster is divided.

No shard is written: a subset is an index of the same shards. Its manifest lists the chains left out
with their reasons, which `dataset_card` shows.
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
from functools import partial
from typing import Any, Final

import pyarrow as pa

from evofeed.base.configs import check_dates
from evofeed.base.errors import DatasetMissing, TooSimilar
from evofeed.store.assemblies import valid_assemblies
from evofeed.store.dataset import Dataset
from evofeed.store.history import Snapshot
from evofeed.store.likeness import MIN_ALIGNED, Clusters, Pair, connected, overlap, similar_pairs
from evofeed.store.manifest import canonical_json, check_name
from evofeed.store.refs import move_ref, read_ref
from evofeed.store.writer import with_cluster_sizes, write_snapshot

_MAX_PAIRS: Final = 10
"""Strongest pairs written to a manifest."""
_MIN_IDENTITY: Final = 0.3
"""Identity from which pairs are recorded even if a higher one is allowed."""
_PDB: Final = re.compile(r"[0-9][a-z0-9]{3}")
_UNCLUSTERED: Final = "in no cluster: its similarity is unknown"
REST: Final = "train"
"""Ref of the chains that are in no named share of `split_chains`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Limits on the chains of a training set. A chain whose value is unknown does not pass."""

    released_from: str = ""
    """ISO date of the first day; empty is any."""
    released_before: str = ""
    """ISO date of the first day to exclude; empty is any."""
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
        check_dates(self, "released_from", "released_before")

    def why_not(self, row: Mapping[str, Any]) -> str:
        """Reason why the chain of a row of the index does not pass, '' if it does."""
        date, resolution = row["release_date"], row["resolution"]
        residues, rows = row["num_res"], row["num_alignments"]
        fraction = row["max_aa_fraction"]
        max_residues = math.inf if self.max_residues is None else self.max_residues
        max_fraction = math.inf if self.max_aa_fraction is None else self.max_aa_fraction
        early = date < self.released_from
        recent = bool(self.released_before) and (not date or date >= self.released_before)
        coarse = self.max_resolution is not None and not 0 < resolution <= self.max_resolution
        tests = (
            (early or recent, f"released {date}" if date else "release date unknown"),
            (coarse, f"resolution {resolution:.4g} Å" if resolution else "resolution unknown"),
            (not self.min_residues <= residues <= max_residues, f"{residues} residues"),
            (rows < self.min_alignments, f"{rows} alignment rows"),
            (fraction > max_fraction, f"{fraction:.3g} of it one residue"),
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
        apart_from: other datasets: chains that are in one, or share a cluster with one of its
            chains, are left out, and so are those in no cluster if clusters are given.
        clusters: at a sequence identity of your choice; cluster sizes in the new index count
            its own chains.

    Raises:
        ValueError: no chain passes; with the reason of the first.
        DatasetMissing: no such dataset or snapshot.
        RefConflict: another process moved `into` meanwhile.
    """
    base, selection = Dataset.open(uri, snapshot), selection or Selection()
    reasons = {
        row["chain_id"]: why
        for row in base.index.drop_columns(["column_offsets"]).to_pylist()
        if (why := selection.why_not(row))
    }
    for other in apart_from:
        common = overlap(base, other, clusters)
        like = {chain: f"like {match} of {other.uri}" for chain, match in common.shared}
        unknown = dict.fromkeys(set(common.unclustered) & set(base), _UNCLUSTERED)
        reasons = unknown | like | reasons
    if len(reasons) == len(base):
        example = next((f", for example {name}: {why}" for name, why in reasons.items()), "")
        raise ValueError(f"no chain of {len(base)} passes{example}")
    config = {"of": base.digest, "apart_from": [other.digest for other in apart_from]}
    config |= {k: v for k, v in dataclasses.asdict(selection).items() if v not in ("", None, 0)}
    return _publish(base, into, lambda name: reasons.get(name, ""), config, clusters)


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
    """Splits a snapshot by cluster, by date, or by both: no two parts have chains of one cluster,
    of one entry, or of one complex; a part has the entries and complexes whose chains it has.

    Clusters are taken in an order that depends on their members and `seed` only; each part is
    filled until it has its share of the chains. A cluster that would make a part more than twice
    its share goes to the next part. A chain in several clusters joins them.

    By date, `train` has the chains released before it, and the part named with the date has the
    clusters in which every chain is younger, up to its share if it has one. Younger chains of
    other clusters are in no part.

    Args:
        clusters: at a sequence identity of your choice. Chains in none are in no part. None
            splits by date alone.
        shares: fraction of the chains by name of the ref, such as `{"valid": 0.1}`; the
            rest goes to `train`.
        released: a part's name and the ISO date of its first day.
        max_identity: the parts are searched against each other (mmseqs), and nothing is published
            if two of their chains are more alike; 1 searches nothing. The strongest pairs
            go into the manifests.

    Raises:
        ValueError: a share is not a fraction, the shares leave nothing for `train`, or every
            cluster is too large for a share.
        TooSimilar: chains of two parts are more alike than allowed.
        InputError: mmseqs is not installed.
        RefConflict: another process moved a ref meanwhile.
    """
    Selection(released_from=(released[1] or "no date") if released else "")  # checks the date
    targets = {**({released[0]: 1.0} if released else {}), **shares}
    if clusters is None and (shares.keys() - {released and released[0]} or not released):
        raise ValueError("shares need clusters: --clusters FILE, a sequence cluster a line")
    spare = sum(shares.values()) < 1 and min(shares.values(), default=1) > 0
    if not targets or not spare or REST in targets:
        raise ValueError(f"shares {dict(shares)}: give fractions above 0, together below 1")
    base = Dataset.open(uri, snapshot)
    names = list(base)
    groups = [[name] for name in names]
    if clusters is not None:
        groups = _groups(names, clusters, _entries_and_complexes(base))
    order = sorted(groups, key=lambda g: hashlib.sha256(f"{seed} {min(g)}".encode()).digest())
    total = sum(map(len, groups))
    part_of: dict[str, str] = {}
    clustered = {name for group in groups for name in group}
    left_out = dict.fromkeys(set(names) - clustered, _UNCLUSTERED)
    if released:
        order = _by_date(base, order, released[1], part_of, left_out)
    filled: Counter[str] = Counter()
    for group in order:
        open_parts = (
            name
            for name, share in targets.items()
            if filled[name] < share * total and filled[name] + len(group) <= 2 * share * total
        )
        part = next(open_parts, REST)
        if released and part == REST:
            left_out |= dict.fromkeys(group, f"released from {released[1]} on, in no part's share")
            continue
        part_of |= dict.fromkeys(group, part)
        filled[part] += len(group)
    if empty := [f"{name}={share:g}" for name, share in targets.items() if not filled[name]]:
        raise ValueError(
            f"share {', '.join(empty)} of {total} chains: each cluster has more than twice as "
            "many; take a larger share, or clusters at a higher identity"
            if not released
            else f"no chain of the clusters that are released from {released[1]} on"
        )
    likeness = (
        _compare_parts(base, part_of, max_identity, allow_similar) if max_identity < 1 else {}
    )

    def why_not(part: str, name: str) -> str:
        actual = part_of.get(name)
        return left_out[name] if actual is None else "" if actual == part else f"in {actual}"

    config: dict[str, Any] = {"of": base.digest, "seed": seed, "shares": dict(shares), **likeness}
    config |= {"released": {released[0]: released[1]}} if released else {}
    return {
        part: _publish(base, part, partial(why_not, part), {**config, "part": part}, clusters)
        for part in (*targets, REST)
    }


def _by_date(
    base: Dataset,
    groups: list[list[str]],
    date: str,
    part_of: dict[str, str],
    left_out: dict[str, str],
) -> list[list[str]]:
    """Groups in which every chain is younger than a date; older chains go to `train`."""
    dates = dict(zip(base, base.index["release_date"].to_pylist(), strict=True))
    young = []
    for group in groups:
        older = [name for name in group if dates[name] and dates[name] < date]
        part_of |= dict.fromkeys(older, REST)
        unknown = [name for name in group if not dates[name]]
        left_out |= dict.fromkeys(unknown, "release date unknown")
        newer = [name for name in group if dates[name] >= date and name not in unknown]
        if older:
            like = f"released from {date} on, and like {older[0]} in {REST}"
            left_out |= dict.fromkeys(newer, like)
        elif newer and not unknown:
            young.append(newer)
        else:
            left_out |= dict.fromkeys(newer, "in a cluster with chains of an unknown date")
    return young


def _compare_parts(
    base: Dataset, part_of: Mapping[str, str], max_identity: float, allow_similar: bool
) -> dict[str, Any]:
    """Similar pairs of chains in different parts, found with mmseqs, for the manifests.

    Raises:
        TooSimilar: pairs above `max_identity`, unless they are allowed.
    """
    sequences: dict[str, dict[str, str]] = {}
    for name, part in part_of.items():
        sequences.setdefault(part, {})[name] = base[name].sequence
    min_identity = min(max_identity, _MIN_IDENTITY)
    pairs: list[Pair] = []
    for a, b in itertools.combinations(sorted(sequences, key=lambda part: part == REST), 2):
        pairs += similar_pairs(sequences[a], sequences[b], min_identity)
    pairs.sort(key=lambda pair: -pair.identity)
    pairs_above = sum(pair.identity > max_identity for pair in pairs)
    if pairs_above and not allow_similar:
        best = pairs[0]
        raise TooSimilar(
            f"{pairs_above} pairs of chains in two parts are alike at more than {max_identity:.0%} "
            f"over {MIN_ALIGNED} residues, {best.query} and {best.target} at "
            f"{best.identity:.0%} over {best.aligned}; nothing is published: cluster at a lower "
            "identity or coverage, or allow it (--allow-similar)"
        )
    strongest = [list(pair) for pair in pairs[:_MAX_PAIRS]]
    return {"max_identity": max_identity, "pairs_above": pairs_above, "strongest_pairs": strongest}


def _entries_and_complexes(base: Dataset) -> list[list[str]]:
    """Chains that stay in one part: those of one entry, and those of one complex."""
    entries = set(base.entries.table["entry"].to_pylist())
    by_entry: dict[str, list[str]] = {}
    for name in base:
        entry = _entry_of(name)
        if entry in entries or _PDB.fullmatch(entry):
            by_entry.setdefault(entry, []).append(name)
    return [*by_entry.values(), *base.assemblies.table["chain_ids"].to_pylist()]


def _entry_of(chain_id: str) -> str:
    return chain_id.rpartition("_")[0].lower()


def _groups(
    names: Iterable[str], clusters: Clusters, together: Iterable[Sequence[str]] = ()
) -> list[list[str]]:
    """Groups of chains that share a cluster, or are `together`, directly or transitively."""
    clusters_of = {name: clusters.of(name) for name in names if clusters.of(name)}
    first: dict[int, str] = {}
    pairs = [(first.setdefault(n, name), name) for name, ids in clusters_of.items() for n in ids]
    for chains in together:
        pairs += itertools.pairwise(name for name in chains if name in clusters_of)
    return connected(clusters_of, pairs)


def _publish(
    base: Dataset,
    into: str,
    why_not: Callable[[str], str],
    settings: dict[str, Any],
    clusters: Clusters | None,
) -> Snapshot:
    """Writes the snapshot of the chains that `why_not` has no reason against, and moves `into`."""
    check_name(into, "ref")
    reasons = {name: why_not(name) for name in base}
    passed = pa.array([not reason for reason in reasons.values()], pa.bool_())
    table = base.index.filter(passed).combine_chunks()
    if clusters is not None:
        groups = _groups(table["chain_id"].to_pylist(), clusters)
        sizes = {name: len(group) for group in groups for name in group}
        table = with_cluster_sizes(table, sizes)
    complexes, _ = valid_assemblies(base, table)
    incomplete = {_entry_of(name) for name, reason in reasons.items() if reason}
    entries = base.entries.part({_entry_of(name) for name in reasons} - incomplete)
    left_out = [{"chain_id": name, "reason": why} for name, why in reasons.items() if why]
    snapshot = write_snapshot(
        base.storage,
        table,
        base.manifest.shards,
        base=base,
        config={**base.manifest.config, "selection": settings},
        dropped=tuple(sorted([*base.manifest.dropped, *left_out], key=canonical_json)),
        assemblies=complexes,
        entries=entries,
    )
    try:
        current: str | None = read_ref(base.storage, into).digest
    except DatasetMissing:
        current = None
    if current != snapshot.digest:
        move_ref(base.storage, into, snapshot.digest, current)
    return snapshot
