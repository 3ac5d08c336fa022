"""Which chain is at which position of which epoch: pure functions of the index.

Nothing here depends on ranks, workers or time. AF2's rules (SI 1.2.5): chains
coarser than 9 ångström or made of one amino acid by more than 80 % are left out;
the others are accepted with probability `max(min(L, 512), 256) / 512`, divided by
the size of their sequence cluster. An epoch runs through its chains in random
order, each at most once a pass, as many passes as its length needs. `shuffle_window`
keeps neighbours in a shard together, for storage that fetches them together.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evofeed.base.errors import LoaderError
from evofeed.loader import counter_rng
from evofeed.loader.config import LoaderConfig
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.views.weights import DatapointDraw

_MAX_PASSES: Final = 10_000
_CHUNK: Final = 1 << 15


def whole_column(index: pa.Table, name: str) -> pa.Array:
    """A column of the index in one piece; the mapped file's own bytes if it is in one."""
    chunks = index[name]
    return chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()


def column(index: pa.Table, name: str) -> np.ndarray:
    """A column of the index as numpy."""
    return np.asarray(whole_column(index, name).to_numpy(zero_copy_only=False))


def eligible_rows(index: pa.Table, config: LoaderConfig) -> np.ndarray:
    """Rows of the index that AF2's fixed filters let through, `i64`, ascending.

    Raises:
        LoaderError: none is left; says which filter took how many.
    """
    filters = {
        f"more than {config.max_aa_fraction} of one amino acid": column(index, "max_aa_fraction")
        > config.max_aa_fraction,
    }
    if not config.allow_unknown:
        filters["unknown residues"] = column(index, "num_unknown") > 0
    return let_through(index, "chain", filters, config)


def let_through(
    table: pa.Table,
    kind: str,
    filters: dict[str, np.ndarray],
    config: LoaderConfig,
    dates: pa.Array | None = None,
) -> np.ndarray:
    """Rows that neither `filters` nor what all kinds have in common take, ascending.

    The table has an id of the kind, `chain`, `assembly` or `entry`; filters are named by what they
    take. `dates` are in place of its dates of release.

    Raises:
        LoaderError: none is left; says which filter took how many.
    """
    too_coarse = column(table, "resolution") > config.max_resolution
    filters = {f"resolution over {config.max_resolution}": too_coarse, **filters}
    if config.supervised and kind != "entry":
        filters["no structure"] = ~column(table, "has_structure")
    if config.released_from or config.released_until:
        dates = whole_column(table, "release_date") if dates is None else dates
        early = pc.less(dates, config.released_from or "0")  # no date at all is early
        late = pc.greater(dates, config.released_until or "9999-99-99")
        filters["release date"] = pc.or_(early, late).to_numpy(zero_copy_only=False)
    if config.chains is not None:
        wanted = pa.array(config.chains, pa.utf8())
        other = pc.invert(pc.is_in(whole_column(table, f"{kind}_id"), value_set=wanted))
        filters[f"not {', '.join(config.chains[:3])}"] = other.to_numpy(zero_copy_only=False)
    out = np.zeros(table.num_rows, bool)
    for mask in filters.values():
        out |= mask
    rows = np.flatnonzero(~out)
    if not len(rows):
        taken = ", ".join(f"{name}: {int(mask.sum())}" for name, mask in filters.items())
        kinds = {"chain": "chains", "assembly": "assemblies", "entry": "entries"}[kind]
        why = f"none of {table.num_rows} {kinds} passes the filters ({taken})"
        if kind == "chain" and config.chains is not None:
            why += "; `evofeed snapshots chains` lists what a dataset has"
        raise LoaderError(why)
    return rows


def accept_probability(index: pa.Table) -> np.ndarray:
    """AF2's probability of accepting each chain of the index, `f64`.

    A cluster size below 1 is unknown and does not count.
    """
    length = np.clip(column(index, "num_res"), 256, 512) / 512
    return np.asarray(length / np.maximum(column(index, "cluster_size"), 1))


def pass_order(
    count: int,
    probability: np.ndarray | None,
    seed: int,
    epoch: int,
    dataset: int,
    number: int,
    window: int | None = None,
) -> np.ndarray:
    """One pass over `count` chains: the accepted ones in random order, `i64`.

    Without a probability of acceptance all are accepted. Neighbours of a `window` stay together in
    random order, and the windows come in random order too; 0: no random order at all; None: all
    are one window.
    """
    words = (seed, epoch, dataset, number)
    chains = _accepted(count, probability, counter_rng.stream_key(*words, Purpose.ACCEPT))
    if window == 0:
        return chains.astype(np.int64)
    keys = counter_rng.draws64_at(counter_rng.stream_key(*words, Purpose.ORDER), chains)
    if window is not None:
        windows = -(-count // window)
        turn = np.argsort(
            counter_rng.draws64(counter_rng.stream_key(*words, Purpose.WINDOWS), windows)
        )
        first = np.empty(windows, np.uint64)
        first[turn] = np.arange(windows, dtype=np.uint64)
        top = np.uint64(64 - windows.bit_length())
        keys = (first[chains // np.uint64(window)] << top) | (keys >> np.uint64(64) - top)
    # The chain's number in the low bits: sorting values is several times faster
    # than sorting an index, and ties cannot depend on the machine.
    bits = np.uint64(max(count - 1, 1).bit_length())
    sorted_keys = np.sort((keys >> bits << bits) | chains)
    return (sorted_keys & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)


def _accepted(count: int, probability: np.ndarray | None, key: int) -> np.ndarray:
    """Chains whose draw is below their probability, `u64`, ascending."""
    if probability is None:
        return np.arange(count, dtype=np.uint64)
    parts = []
    for start in range(0, count, _CHUNK):  # what fits the cache is drawn twice as fast
        chance = probability[start : start + _CHUNK]
        draw = counter_rng.draws64(key, len(chance), start) >> np.uint64(11)
        parts.append(np.flatnonzero(draw < chance * 2.0**53) + start)
    return np.concatenate(parts).astype(np.uint64)


def _dataset_order(
    count: int,
    probability: np.ndarray | None,
    seed: int,
    epoch: int,
    dataset: int,
    length: int,
    most: int,
    window: int | None,
) -> np.ndarray:
    parts: list[np.ndarray] = []
    have = 0
    for number in itertools.count():
        if have >= length:
            break
        if number >= _MAX_PASSES and have < number:
            raise LoaderError(
                f"AF2's probabilities let through {have} chains in {number} passes over {count}, "
                f"and the epoch needs {length}: use weighted=False or a smaller epoch_len"
            )
        parts.append(pass_order(count, probability, seed, epoch, dataset, number, window))
        have += len(parts[-1])
    return np.concatenate(parts)[:most] if parts else np.zeros(0, np.int64)


def epoch_order(
    counts: Sequence[int],
    chances: Sequence[np.ndarray | DatapointDraw | None],
    weights: Sequence[float],
    *,
    seed: int,
    epoch: int,
    length: int,
    most: int | None = None,
    window: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Dataset and chain at each position of an epoch, `i64[length]` each.

    A pass is made as a whole: of a single dataset, what it has beyond `length` is there too, up to
    `most` positions.
    Chances of acceptance are of each dataset's chains, or None; datapoints are drawn with
    replacement instead. For `window` see `pass_order`.
    """
    most = length if most is None else most
    if len(counts) == 1 and not isinstance(chances[0], DatapointDraw):
        chain = _dataset_order(counts[0], chances[0], seed, epoch, 0, length, most, window)
        return np.zeros(len(chain), np.int64), chain
    which = _mixture(weights, seed, epoch, length)
    chain = np.empty(length, np.int64)
    for dataset, (count, chance) in enumerate(zip(counts, chances, strict=True)):
        here = np.flatnonzero(which == dataset)
        if isinstance(chance, DatapointDraw):
            chain[here] = chance.rows(seed, epoch, 0, length)[here]
        else:
            of = seed, epoch, dataset, len(here), len(here), window
            chain[here] = _dataset_order(count, chance, *of)
    return which, chain


def _mixture(weights: Sequence[float], seed: int, epoch: int, length: int) -> np.ndarray:
    """Dataset at each position, drawn by its share of the mixture, `i64`."""
    share = np.cumsum(weights) / np.sum(weights)
    draw = counter_rng.bits32(counter_rng.stream_key(seed, epoch, Purpose.MIXTURE), length)
    return np.searchsorted(share[:-1], draw * 2.0**-32, side="right").astype(np.int64)


def window_order(costs: np.ndarray, step_size: int, key: int) -> np.ndarray:
    """Samples of some optimiser steps so that those which run at the same time cost alike, `i64`.

    Each step takes neighbours in the order of costs, dearest first, so the spread
    within each batch of all ranks is small. Which step takes which is shuffled, so
    that the dearest do not all come first. Ranks do not count: a step holds the
    same samples for any number of them.
    """
    order = np.argsort(-costs, kind="stable").reshape(-1, step_size)
    return order[counter_rng.few_in_order(key, len(order))].reshape(-1)
