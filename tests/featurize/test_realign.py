"""Hits are realigned as OpenFold does it by calling kalign, without the program."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.featurize.golden import INPUTS
from tests.featurize.search.family import require_programs
from tests.featurize.test_templates import CONFIG, hit, structure

from evofeed.base.errors import InputError, TemplateError
from evofeed.featurize.records.realign import aligned_positions
from evofeed.featurize.records.template_match import match_hit
from evofeed.featurize.structures.structure_files import parse_structure

_LETTERS = "ARNDCQEGHILKMFPSTWYV"


def chains(files: list[Path], shortest: int, longest: int) -> list[str]:
    """Sequences of entries, each once."""
    found: dict[str, None] = {}
    for path in files:
        with contextlib.suppress(InputError):  # DNA alone
            sequences = parse_structure(path.read_bytes(), path.name).sequences.values()
            found |= dict.fromkeys(s for s in sequences if shortest < len(s) < longest)
    return list(found)


def edited(sequence: str, draw: random.Random) -> str:
    """As a hit differs from its entry: cut, a few residues changed, one left out, a tag."""
    start, end = draw.randrange(12), len(sequence) - draw.randrange(12)
    letters = list(sequence[start:end])
    for _ in range(draw.randrange(1, 4)):
        letters[draw.randrange(len(letters))] = draw.choice(_LETTERS)
    if draw.random() < 0.6:
        del letters[draw.randrange(5, max(6, len(letters) - 5))]
    return ("GSHM" if draw.random() < 0.4 else "") + "".join(letters)


def by_kalign(old: str, new: str, folder: Path) -> np.ndarray:
    """Position in `new` of each letter of `old`, -1 where kalign's rows give it none."""
    program = shutil.which("kalign")
    assert program, "kalign is not on the PATH"
    (folder / "in.fasta").write_text(f">1\n{old}\n>2\n{new}\n")
    command = [program, "-i", "in.fasta", "-o", "out.a3m", "-format", "fasta"]
    # kalign 3 reads a pipe that is there too.
    null = subprocess.DEVNULL
    subprocess.run(command, cwd=folder, check=True, stdin=null, capture_output=True)
    records = (folder / "out.a3m").read_text().split(">")[1:]
    rows = ["".join(record.splitlines()[1:]) for record in records]
    there = [np.array([letter != "-" for letter in row]) for row in rows]
    facing: np.ndarray = np.where(there[1], np.cumsum(there[1]) - 1, -1)[there[0]]
    return facing


def test_every_residue_is_aligned_as_by_kalign(tmp_path: Path) -> None:
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
        alike += aligned_positions(old, entry).tolist() == by_kalign(old, entry, tmp_path).tolist()
    assert total >= 60 and alike == total


def test_a_realigned_hit_has_the_residues_aligned_to_it() -> None:
    assert aligned_positions("ACDEFGHIKLMXXN", "ACDEFGHIKLMXXNPQ").tolist() == list(range(14))
    assert aligned_positions("WACDEUFGHIKLM", "ACDEFGHIKLM").tolist() == [
        -1,
        0,
        1,
        2,
        3,
        -1,
        *range(4, 11),
    ]
    letters, chain = "GSACDEFGHIKLMNPQRSTVWYACDEFGHIKLM", "ACDEFGHIKLMNPQRATVWYACDEFGHIKLMAA"
    match = match_hit(
        hit(query=letters, letters=letters, start=0),
        "A",
        letters,
        structure({"A": chain}),
        CONFIG.replace(unmatched_to_last=False),
    )
    assert match.query.tolist() == list(range(2, 33))
    assert match.template.tolist() == list(range(31)) and match.letters == chain[:31]


def test_a_hit_that_cannot_be_realigned_is_dropped_alone() -> None:
    letters = "ACDEFGHIKLMN"
    long = hit(query=letters, letters=letters, start=0)
    with pytest.raises(TemplateError, match="not realigned: 12 residues to 5"):
        match_hit(long, "A", letters, structure({"A": "ACDEF"}), CONFIG)
