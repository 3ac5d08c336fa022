"""Sampling order: the chain at each position of an epoch, as pure functions of the index.

Nothing here depends on ranks, workers or time. AF2's rules (SI 1.2.5): chains
coarser than 9 ångström or with more than 80 % of one amino acid are excluded;
the others are accepted with probability `max(min(L, 512), 256) / 512`, divided by
the size of their sequence cluster. An epoch consists of passes over the accepted chains
in random order, as many as its length needs. `shuffle_window` keeps neighbours in a
shard together, for storage that fetches them together.
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


def arrow_column(index: pa.Table, name: str) -> pa.Array:
    """A column of the index as one array, without a copy if it is one chunk."""
    chunks = index[name]
    return chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()


def column(index: pa.Table, name: str) -> np.ndarray:
    """A column of the index as numpy."""
    return np.asarray(arrow_column(index, name).to_numpy(zero_copy_only=False))


def eligible_rows(index: pa.Table, config: LoaderConfig) -> np.ndarray:
    """Rows of the index that pass AF2's fixed filters, `i64`, ascending.

    Raises:
        LoaderError: no chain passes; names the filters and their counts.
    """
    filters = {
        f"more than {config.max_aa_fraction} of one amino acid": column(index, "max_aa_fraction")
        > config.max_aa_fraction,
    }
    if not config.allow_unknown:
        filters["unknown residues"] = column(index, "num_unknown") > 0
    return filter_rows(index, "chain", filters, config)


def filter_rows(
    table: pa.Table,
    kind: str,
    filters: dict[str, np.ndarray],
    config: LoaderConfig,
    dates: pa.Array | None = None,
) -> np.ndarray:
    """Rows that pass these filters and those of all kinds: resolution, structure, date, ids.

    The kind is `chain`, `assembly` or `entry`. Filters are masks of rows to exclude, by reason.
    `dates` replace the table's release dates.

    Raises:
        LoaderError: no row passes; names the filters and their counts.
    """
    too_coarse = column(table, "resolution") > config.max_resolution
    filters = {f"resolution over {config.max_resolution}": too_coarse, **filters}
    if config.supervised and kind != "entry":
        filters["no structure"] = ~column(table, "has_structure")
    if config.released_from or config.released_until:
        dates = arrow_column(table, "release_date") if dates is None else dates
        too_early = pc.less(dates, config.released_from or "0")  # so is a missing date
        too_late = pc.greater(dates, config.released_until or "9999-99-99")
        filters["release date"] = pc.or_(too_early, too_late).to_numpy(zero_copy_only=False)
    if config.chains is not None:
        chosen = pa.array(config.chains, pa.utf8())
        unchosen = pc.invert(pc.is_in(arrow_column(table, f"{kind}_id"), value_set=chosen))
        filters[f"not {', '.join(config.chains[:3])}"] = unchosen.to_numpy(zero_copy_only=False)
    excluded = np.zeros(table.num_rows, bool)
    for mask in filters.values():
        excluded |= mask
    rows = np.flatnonzero(~excluded)
    if not len(rows):
        counts = ", ".join(f"{name}: {int(mask.sum())}" for name, mask in filters.items())
        kinds = {"chain": "chains", "assembly": "assemblies", "entry": "entries"}[kind]
        message = f"none of {table.num_rows} {kinds} passes the filters ({counts})"
        if kind == "chain" and config.chains is not None:
            message += "; `evofeed snapshots chains` lists what a dataset has"
        raise LoaderError(message)
    return rows


def accept_probability(index: pa.Table) -> np.ndarray:
    """AF2's probability of accepting each chain of the index, `f64`.

    A cluster size below 1 means unknown and counts as 1.
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

    Without probabilities all are accepted. The order is random within windows of `window`
    neighbours and among the windows; 0: no shuffling; None: one window of all chains.
    """
    words = (seed, epoch, dataset, number)
    chains = _accepted(count, probability, counter_rng.stream_key(*words, Purpose.ACCEPT))
    if window == 0:
        return chains.astype(np.int64)
    keys = counter_rng.draws64_at(counter_rng.stream_key(*words, Purpose.ORDER), chains)
    if window is not None:
        windows = -(-count // window)
        order = np.argsort(
            counter_rng.draws64(counter_rng.stream_key(*words, Purpose.WINDOWS), windows)
        )
        rank = np.empty(windows, np.uint64)
        rank[order] = np.arange(windows, dtype=np.uint64)
        shift = np.uint64(64 - windows.bit_length())
        keys = (rank[chains // np.uint64(window)] << shift) | (keys >> np.uint64(64) - shift)
    # The chain's number is in the low bits: sorting values is several times faster
    # than argsort, and ties cannot depend on the machine.
    bits = np.uint64(max(count - 1, 1).bit_length())
    sorted_keys = np.sort((keys >> bits << bits) | chains)
    return (sorted_keys & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)


def _accepted(count: int, probability: np.ndarray | None, key: int) -> np.ndarray:
    """Chains with a draw below their probability, `u64`, ascending."""
    if probability is None:
        return np.arange(count, dtype=np.uint64)
    parts = []
    for start in range(0, count, _CHUNK):  # twice as fast as one array that exceeds the cache
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
    max_length: int,
    window: int | None,
) -> np.ndarray:
    passes: list[np.ndarray] = []
    accepted = 0
    for number in itertools.count():
        if accepted >= length:
            break
        if number >= _MAX_PASSES and accepted < number:
            raise LoaderError(
                f"AF2's probabilities accept {accepted} chains in {number} passes over {count}, "
                f"and the epoch needs {length}: use weighted=False or a smaller epoch_len"
            )
        passes.append(pass_order(count, probability, seed, epoch, dataset, number, window))
        accepted += len(passes[-1])
    return np.concatenate(passes)[:max_length] if passes else np.zeros(0, np.int64)


def epoch_order(
    counts: Sequence[int],
    probabilities: Sequence[np.ndarray | DatapointDraw | None],
    weights: Sequence[float],
    *,
    seed: int,
    epoch: int,
    length: int,
    max_length: int | None = None,
    window: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Dataset and chain at each position of an epoch, `i64[length]` each.

    The order of a single dataset is made by full passes and may exceed `length`, up to
    `max_length` positions. `probabilities` are those of accepting each dataset's chains (None:
    all); datapoints are drawn with replacement instead. For `window` see `pass_order`.
    """
    max_length = length if max_length is None else max_length
    if len(counts) == 1 and not isinstance(probabilities[0], DatapointDraw):
        passes = seed, epoch, 0, length, max_length, window
        chain = _dataset_order(counts[0], probabilities[0], *passes)
        return np.zeros(len(chain), np.int64), chain
    datasets = _mixture(weights, seed, epoch, length)
    chain = np.empty(length, np.int64)
    for dataset, (count, probability) in enumerate(zip(counts, probabilities, strict=True)):
        positions = np.flatnonzero(datasets == dataset)
        if isinstance(probability, DatapointDraw):
            chain[positions] = probability.rows(seed, epoch, 0, length)[positions]
        else:
            passes = seed, epoch, dataset, len(positions), len(positions), window
            chain[positions] = _dataset_order(count, probability, *passes)
    return datasets, chain


def _mixture(weights: Sequence[float], seed: int, epoch: int, length: int) -> np.ndarray:
    """Dataset at each position, drawn by its share of the mixture, `i64`."""
    share = np.cumsum(weights) / np.sum(weights)
    draw = counter_rng.bits32(counter_rng.stream_key(seed, epoch, Purpose.MIXTURE), length)
    return np.searchsorted(share[:-1], draw * 2.0**-32, side="right").astype(np.int64)


def window_order(costs: np.ndarray, step_size: int, key: int) -> np.ndarray:
    """Samples of some optimiser steps, ordered so that concurrent ones have similar costs, `i64`.

    Each step gets neighbours in order of decreasing cost, so the spread within each batch
    over all ranks is small. The steps are shuffled, so that the most expensive ones are
    not the first. A step holds the same samples for any number of ranks.
    """
    order = np.argsort(-costs, kind="stable").reshape(-1, step_size)
    return order[counter_rng.small_permutation(key, len(order))].reshape(-1)
