"""Hits as they differ from their structures, and what the program kalign makes of them."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np

from evofeed.base.errors import InputError
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
