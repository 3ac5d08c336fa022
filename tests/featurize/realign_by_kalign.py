"""Are hits realigned as kalign realigns them, and how long does each take?

    python -m tests.featurize.realign_by_kalign [--hits 2500] [--out results/realign.json]

Chains of the golden pack's real entries, each cut, edited and tagged at random as hits differ
from their structures; either of the two is the longer one. Every position is compared with what
the program kalign writes for the pair. Needs kalign and GOLDEN.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

_LETTERS = "ARNDCQEGHILKMFPSTWYV"


def main() -> None:
    from tests.featurize.golden import INPUTS

    from evofeed.featurize.records.realign import onto

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hits", type=int, default=2500)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/realign.json"))
    args = parser.parse_args()
    draw = random.Random(0)
    known = chains(sorted(INPUTS[0].glob("mmcif/*.cif")), 20, 800)
    onto(known[0], known[1])  # compiled
    alike = total = 0
    seconds = {"kalign": 0.0, "evofeed": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        while total < args.hits:
            entry = draw.choice(known)
            hit = edited(entry, draw)
            if draw.random() < 0.3:
                hit = hit[: draw.randrange(10, len(hit))]
            if hit in entry:
                continue
            old, new = (hit, entry) if draw.random() < 0.5 else (entry, hit)
            began = time.perf_counter()
            want = by_kalign(old, new, Path(folder))
            between = time.perf_counter()
            got = onto(old, new)
            seconds["evofeed"] += time.perf_counter() - between
            seconds["kalign"] += between - began
            total += 1
            alike += np.array_equal(got, want)
    version = subprocess.run(["kalign", "--version"], capture_output=True, text=True, check=True)
    found = {
        "hits": total,
        "chains": len(known),
        "residues": [min(map(len, known)), max(map(len, known))],
        "alike": alike,
        "ms_each": {name: round(1e3 * value / total, 3) for name, value in seconds.items()},
        "program": version.stdout.strip(),
        "command": "python -m tests.featurize.realign_by_kalign",
        "machine": f"{platform.processor() or platform.machine()}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def chains(files: list[Path], shortest: int, longest: int) -> list[str]:
    """Sequences of entries, each once."""
    from evofeed.base.errors import InputError
    from evofeed.featurize.structures.structure_files import parse_structure

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


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
