"""Predictions that cannot be proteins are said to be so."""

from __future__ import annotations

import numpy as np
import pytest

from evofeed.trainer.predict.plausible import implausible

HELIX = np.array(
    [[2.3 * np.cos(1.745 * i), 2.3 * np.sin(1.745 * i), 1.5 * i] for i in range(40)]
)  # CA atoms of an alpha helix: 3.8 ångström apart


def said(ca: np.ndarray) -> str:
    return implausible(ca, np.arange(len(ca)), np.zeros(len(ca)))


def test_a_helix_is_a_protein() -> None:
    assert said(HELIX) == ""


@pytest.mark.parametrize(
    ("ca", "words"),
    [
        (np.zeros((34, 3)), "collapsed: consecutive CA atoms are 0.00 Å"),
        (HELIX * 0.1, "collapsed"),
        (HELIX * 2.0, "physically impossible: only 0% of consecutive"),
        (np.concatenate([HELIX, HELIX[::-1] + np.array([0.0, 0.0, 0.1])]), "within 2.0 Å"),
    ],
)
def test_what_no_protein_has_is_named(ca: np.ndarray, words: str) -> None:
    assert words in said(ca)


def test_chains_and_gaps_are_not_bonded() -> None:
    two = np.concatenate([HELIX, HELIX + 100.0])
    number = np.tile(np.arange(40), 2)
    assert implausible(two, number, np.repeat([0, 1], 40)) == ""
    gapped = np.concatenate([np.arange(40), np.arange(60, 100)])
    assert implausible(two, gapped, np.zeros(80)) == ""
