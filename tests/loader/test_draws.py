"""Free-running draws follow AF2's distributions, and every device draws the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evofeed.loader import counter_rng, msa_draws
from evofeed.loader.config import LoaderConfig
from evofeed.loader.draws import draw_crop, recycling_iters, sample_key, use_clamped_fape
from evofeed.loader.msa_draws import RecycleDraws
from evofeed.loader.transforms import clusters, msa
from evofeed.protein.residues import GAP, MASK

CPU = torch.device("cpu")
CONFIG = LoaderConfig.initial_training()
WORDS = st.integers(-(2**63), 2**64 - 1)


def draws_of(sample: int, recycle: int = 0, config: LoaderConfig = CONFIG) -> RecycleDraws:
    return RecycleDraws(config, sample_key(0, 0, sample), recycle, CPU)


@settings(deadline=None)
@given(WORDS, st.integers(0, 200))
def test_numpy_and_torch_draw_the_same_bits(word: int, count: int) -> None:
    key = counter_rng.stream_key(word)
    want = counter_rng.draws64(key, count)
    got = msa_draws.draws64(key, count, CPU)
    assert np.array_equal(got.numpy().view(np.uint64), want)
    low = msa_draws.bits32(key, count, CPU).numpy()
    assert np.array_equal(low, counter_rng.bits32(key, count))
    order = msa_draws.permutation(key, count, CPU).tolist()
    assert sorted(order) == list(range(count))
    assert order == np.argsort(want >> np.uint64(1), kind="stable").tolist()


@settings(deadline=None)
@given(WORDS, st.integers(1, 2**31), st.integers(0, 100))
def test_a_bounded_draw_is_the_same_alone_and_in_a_row(word: int, bound: int, index: int) -> None:
    key = counter_rng.stream_key(word)
    alone = counter_rng.below(key, bound, index)
    assert 0 <= alone < bound
    assert alone == int(counter_rng.bits32(key, index + 1)[index]) * bound >> 32


def test_the_bits_are_those_of_the_published_generator() -> None:
    # splitmix64 seeded with 1234567: the reference implementation's first outputs
    want = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert counter_rng.draws64(1234567, 3).tolist() == want


def test_block_deletion_keeps_a_quarter_of_the_rows() -> None:
    # Five blocks of 30 % over uniform starts: (1 - 0.7^6) / 6 + 0.7^6 of the rows stay.
    rows, size = 1000, msa.block_size(1000, CONFIG.block_fraction)
    remaining = [
        sum(b - a for a, b in msa.remaining_spans(rows, draws_of(i).block_starts(rows), size))
        for i in range(500)
    ]
    want = (1 - 0.7**6) / 6 + 0.7**6
    assert abs(np.mean(remaining) / rows - want) < 4 * np.std(remaining) / rows / math.sqrt(
        len(remaining)
    )


def test_masked_cells_become_what_af2_says_as_often_as_it_says() -> None:
    rows, length = 400, 250
    rng = np.random.default_rng(0)
    codes = torch.from_numpy(rng.integers(0, GAP + 1, [rows, length]).astype(np.uint8))
    counts = torch.zeros(length, 22, dtype=torch.int64)
    counts[:, 3], counts[:, GAP] = 30, 10
    draws = draws_of(0)
    mask = draws.mask_position(rows, length)
    cells = rows * length
    assert abs(mask.float().mean() - 0.15) < 4 * math.sqrt(0.15 * 0.85 / cells)
    new = draws.replacement(codes, counts)
    share = {code: float((new == code).float().mean()) for code in range(MASK + 1)}
    same = {code: float((codes == code).float().mean()) for code in range(22)}
    assert abs(share[MASK] - 0.7) < 4 * math.sqrt(0.7 * 0.3 / cells)
    for code in range(22):
        want = 0.1 * same[code]
        want += 0.1 * 0.05 if code < 20 else 0.0
        want += 0.1 * {3: 0.75, GAP: 0.25}.get(code, 0.0)
        assert abs(share[code] - want) < 5 * math.sqrt(max(want, 1e-4) / cells), code


def test_the_start_of_a_crop_follows_the_published_law() -> None:
    # x uniform in 0..n, start uniform in 0..n-x: P(start = s) = sum_{m >= s} 1/(m+1) / (n+1)
    length, samples = 256 + 9, 2_000
    counts = np.zeros(10)
    for sample in range(samples):
        crop = draw_crop(CONFIG, sample_key(1, 0, sample), length, 0)
        assert crop.length == 256
        counts[crop.start] += 1
    want = np.array([sum(1 / (m + 1) for m in range(s, 10)) for s in range(10)]) / 10 * samples
    assert np.all(abs(counts - want) < 5 * np.sqrt(want))


@pytest.mark.parametrize("templates", [1, 3, 6])
def test_templates_are_chosen_by_the_published_law(templates: int) -> None:
    samples = 1000
    sizes = np.zeros(5)
    first = np.zeros(templates)
    for sample in range(samples):
        chosen = draw_crop(CONFIG, sample_key(2, 0, sample), 10, templates).templates
        assert len(set(chosen)) == len(chosen) <= 4
        sizes[len(chosen)] += 1
        if chosen:
            first[chosen[0]] += 1
    starts = np.arange(templates + 1)
    want = np.bincount(np.minimum(templates - starts, 4), minlength=5) / (templates + 1)
    assert np.all(abs(sizes / samples - want) < 5 * np.sqrt(want / samples) + 1e-9)
    assert abs(first / first.sum() - 1 / templates).max() < 5 / math.sqrt(samples)
    remaining = draw_crop(LoaderConfig.prediction(), 5, 10, templates).templates
    assert remaining == tuple(range(min(templates, 4)))


def test_recycling_and_clamping_have_their_frequencies() -> None:
    iters = np.array([recycling_iters(CONFIG, 0, 0, step) for step in range(2000)])
    assert abs(np.bincount(iters) / 2000 - 0.25).max() < 5 * math.sqrt(0.25 * 0.75 / 2000)
    clamped = np.mean([use_clamped_fape(CONFIG, sample_key(0, 0, i)) for i in range(2000)])
    assert abs(clamped - 0.9) < 5 * math.sqrt(0.09 / 2000)
    assert recycling_iters(LoaderConfig.prediction(), 0, 0, 0) == 3


def test_clustering_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    centres = torch.from_numpy(rng.integers(0, 4, [7, 90]).astype(np.uint8))
    extra = torch.from_numpy(rng.integers(0, 4, [500, 90]).astype(np.uint8))
    want = clusters.nearest_clusters(centres, extra)
    monkeypatch.setattr(clusters, "_EXACT_COLUMNS", 32)
    monkeypatch.setattr(clusters, "_CHUNK_BYTES", 1)
    assert torch.equal(clusters.nearest_clusters(centres, extra), want)
