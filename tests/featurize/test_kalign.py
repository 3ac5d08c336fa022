"""Hits realigned by kalign are where OpenFold puts them with the same program."""

from __future__ import annotations

import contextlib
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.featurize.golden import INPUTS
from tests.featurize.search_programs import require_programs
from tests.featurize.test_templates import CONFIG, hit, structure

from evofeed.errors import InputError, TemplateError
from evofeed.featurize.kalign import kalign_onto
from evofeed.featurize.structure_files import parse_structure
from evofeed.featurize.template_match import match_hit

LETTERS = "ARNDCQEGHILKMFPSTWYV"


def chains() -> list[str]:
    """Sequences of real entries, each once."""
    found: dict[str, None] = {}
    for path in sorted(INPUTS[0].glob("mmcif/*.cif"))[:8]:
        with contextlib.suppress(InputError):  # DNA alone
            sequences = parse_structure(path.read_bytes(), path.name).sequences.values()
            found |= dict.fromkeys(s for s in sequences if 40 < len(s) < 400)
    return list(found)[:6]


def edited(sequence: str, draw: random.Random) -> str:
    """As a hit differs from its entry: cut, a few residues changed, one left out, a tag."""
    start, end = draw.randrange(12), len(sequence) - draw.randrange(12)
    letters = list(sequence[start:end])
    for _ in range(draw.randrange(1, 4)):
        letters[draw.randrange(len(letters))] = draw.choice(LETTERS)
    if draw.random() < 0.6:
        del letters[draw.randrange(5, len(letters) - 5)]
    return ("GSHM" if draw.random() < 0.4 else "") + "".join(letters)


def by_hand(old: str, new: str, folder: Path) -> dict[int, int]:
    """OpenFold's reading of kalign's output (`_realign_pdb_template_to_query`)."""
    (folder / "in.fasta").write_text(f">sequence 1\n{old}\n>sequence 2\n{new}\n")
    command = ["kalign", "-i", "in.fasta", "-o", "out.a3m", "-format", "fasta"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    records = (folder / "out.a3m").read_text().split(">")[1:]
    rows = ["".join(record.splitlines()[1:]) for record in records]
    mapping, i, j = {}, -1, -1
    for a, b in zip(*rows, strict=True):
        i, j = i + (a != "-"), j + (b != "-")
        if a != "-" and b != "-":
            mapping[i] = j
    return mapping


def test_every_residue_faces_what_kalign_makes_it_face(tmp_path: Path) -> None:
    require_programs()
    draw = random.Random(0)
    alike = total = 0
    for sequence in chains():
        for _ in range(2):
            old = edited(sequence, draw)
            if old in sequence:
                continue
            want = by_hand(old, sequence, tmp_path)
            onto = kalign_onto(old, sequence)
            assert {i: j for i, j in enumerate(onto.tolist()) if j >= 0} == want
            one = hit(query=old, letters=old, start=0)
            entry = structure({"A": sequence})
            matches = [
                match_hit(one, "A", old, entry, CONFIG.replace(realign=how))  # type: ignore[arg-type]
                for how in ("kalign", "biopython")
            ]
            got = dict(zip(matches[0].query.tolist(), matches[0].template.tolist(), strict=True))
            assert got == want and matches[0].realigned
            total += 1
            alike += np.array_equal(matches[0].template, matches[1].template) and np.array_equal(
                matches[0].query, matches[1].query
            )
    assert total >= 8 and alike >= 0.75 * total  # Biopython differs where gaps may as well lie


def test_what_kalign_cannot_align_is_one_lost_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    require_programs()
    with pytest.raises(TemplateError, match="kalign wants 6"):
        kalign_onto("ACDE", "ACDEFGHIK")
    assert kalign_onto("ACDEFGHIKLMXXN", "ACDEFGHIKLMXXNPQ").tolist() == list(range(14))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InputError, match="not on the PATH"):
        kalign_onto("ACDEFGHIK", "ACDEFGHIK")
