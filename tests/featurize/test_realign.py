"""Hits are realigned as OpenFold does it by calling kalign, without the program."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.featurize.golden import INPUTS
from tests.featurize.realign_by_kalign import by_kalign, chains, edited
from tests.featurize.search.family import require_programs
from tests.featurize.test_templates import CONFIG, hit, structure

from evofeed.base.errors import TemplateError
from evofeed.featurize.records.realign import onto
from evofeed.featurize.records.template_match import match_hit


def test_every_residue_faces_what_kalign_makes_it_face(tmp_path: Path) -> None:
    require_programs()
    draw = random.Random(0)
    known = chains(sorted(INPUTS[0].glob("mmcif/*.cif"))[:8], 40, 400)
    alike = total = 0
    for number in range(80):
        entry = draw.choice(known)
        old = edited(entry, draw)
        if old in entry:
            continue
        old, entry = (old, entry) if number % 2 else (entry, old)
        total += 1
        alike += onto(old, entry).tolist() == by_kalign(old, entry, tmp_path).tolist()
    assert total >= 60 and alike == total


def test_a_realigned_hit_has_the_residues_that_face_it() -> None:
    assert onto("ACDEFGHIKLMXXN", "ACDEFGHIKLMXXNPQ").tolist() == list(range(14))
    assert onto("WACDEUFGHIKLM", "ACDEFGHIKLM").tolist() == [-1, 0, 1, 2, 3, -1, *range(4, 11)]
    letters, chain = "GSACDEFGHIKLMNPQRSTVWYACDEFGHIKLM", "ACDEFGHIKLMNPQRATVWYACDEFGHIKLMAA"
    match = match_hit(
        hit(query=letters, letters=letters, start=0),
        "A",
        letters,
        structure({"A": chain}),
        CONFIG.replace(unmatched_to_last=False),
    )
    assert match.realigned and match.query.tolist() == list(range(2, 33))
    assert match.template.tolist() == list(range(31)) and match.letters == chain[:31]


def test_what_kalign_does_not_take_is_one_lost_hit() -> None:
    with pytest.raises(TemplateError, match="not realigned: 12 residues to 5"):
        match_hit(
            hit(query="ACDEFGHIKLMN", letters="ACDEFGHIKLMN", start=0),
            "A",
            "ACDEFGHIKLMN",
            structure({"A": "ACDEF"}),
            CONFIG,
        )
