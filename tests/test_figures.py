"""Figures in the README are those of the results they name, rounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = " ".join((ROOT / "README.md").read_text().split())


def result(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / name).read_text())


def store_sentences() -> list[str]:
    found = result("store.json")
    ratio = {name: f"{value:.2f}" for name, value in found["ratio"].items()}
    ms = {name: f"{times['cpu_mean'] / 1e3:.2f}" for name, times in found["crop_us"].items()}
    return [
        f"| dataset size, {found['workload']['chains']:,} chains | {ratio['evofeed']} of the raw "
        f"arrays ({ratio['evofeed zstd']} with zstd) | Arrow zstd {ratio['Arrow IPC zstd']}, "
        f"lz4 {ratio['Arrow IPC lz4']} |",
        f"| {ms['evofeed']} ms, checksum included | raw Arrow {ms['Arrow IPC raw']}, MosaicML MDS "
        f"{ms['MosaicML MDS']}, Arrow zstd {ms['Arrow IPC zstd']}, Lance {ms['Lance']} ms |",
    ]


def featurize_sentences() -> list[str]:
    found = result("featurize.json")
    # One small file pays a fixed cost; it is told apart.
    large = [each for each in found["alignments"].values() if each["characters"] > 100_000]
    small = [each for each in found["alignments"].values() if each["characters"] < 10_000]
    ours = sorted(each["ours_ns_per_character"] for each in large)
    fixed = sorted(each["ours_ns_per_character"] for each in small)
    theirs = sorted(
        each["openfold_parse_only_ns_per_character"] for each in found["alignments"].values()
    )
    every = found["structures"].values()
    times = sorted(each["times_biopython"] for each in every if "times_biopython" in each)
    return [
        f"| {ours[0]:.0f}-{ours[-1]:.0f} ns a character; {fixed[0]:.0f}-{fixed[-1]:.0f} for a file "
        f"of 20 sequences | OpenFold's parser alone {theirs[0]:.0f}-{theirs[-1]:.0f}, same run |",
        f"| {times[0]:.0f}x to {times[-1]:.0f}x Biopython's parser | same run |",
    ]


@pytest.mark.parametrize("sentence", [*store_sentences(), *featurize_sentences()])
def test_a_figure_in_the_readme_is_the_results(sentence: str) -> None:
    assert sentence in README
