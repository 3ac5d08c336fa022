"""What becomes of every file of a folder: chains, a reason with a next step, or a fault of ours.

    python benchmarks/corpus.py FOLDER --out corpus.json

FOLDER is a tree of files as people have them, for example clones of public repositories; the
script fetches nothing. Each structure, alignment, FASTA or job file is an input of its own.
An exception that is not an `EvofeedError` is a fault of ours: the exit code is then 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evofeed.errors import EvofeedError, InputError
from evofeed.featurize import discover, featurize_chain
from evofeed.featurize.reading import plain

KINDS = (
    *".cif .mmcif .bcif .pdb .ent .core .a3m .fasta .fa .faa".split(),
    *".json .yaml .yml .csv .aligned.pqt .ffindex".split(),
)
_NUMBERS = re.compile(r"'[^']*'|\d+")


def main() -> int:
    """Go through the folder, print a table, write what happened to each file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("corpus.json"))
    parser.add_argument("--most-mib", type=float, default=50, help="larger files are left out")
    arguments = parser.parse_args()
    rows = [outcome(path) for path in files(arguments.folder, int(arguments.most_mib * 2**20))]
    arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
    by_kind: dict[str, Counter[str]] = {}
    for row in rows:
        by_kind.setdefault(row["kind"], Counter())[row["outcome"]] += 1
        by_kind[row["kind"]]["chains"] += row["chains"]
    for kind, counts in sorted(by_kind.items()):
        print(kind, *(f"{name} {count}" for name, count in sorted(counts.items())))
    reasons = Counter(_NUMBERS.sub("…", why) for row in rows for why in row["refused"])
    for reason, count in reasons.most_common(20):
        print(f"{count:6d} x {reason[:140]}")
    faults = [row for row in rows if row["outcome"] == "fault"]
    for row in faults:
        print(f"FAULT {row['path']}: {row['fault']}")
    print(f"{len(rows)} files, {len(faults)} untyped exceptions")
    return 1 if faults else 0


def files(folder: Path, most_nbytes: int) -> Iterator[Path]:
    """The files of kinds that are read, in order of name."""
    for home, below, names in os.walk(folder):
        below.sort()
        for name in sorted(names):
            path = Path(home) / name
            known = plain(name).endswith(KINDS) and path.is_file()
            if known and path.stat().st_size <= most_nbytes:
                yield path


def outcome(path: Path) -> dict[str, Any]:
    """What became of one file."""
    kind = Path(plain(path.name)).suffix
    row: dict[str, Any] = {"path": str(path), "kind": kind, "chains": 0, "refused": [], "fault": ""}
    begin = time.perf_counter()
    problems: list[InputError] = []
    try:
        for source in discover(path, problems=problems):
            try:
                featurize_chain(source)
                row["chains"] += 1
            except EvofeedError as error:
                row["refused"].append(error.message)
    except EvofeedError as error:
        row["refused"].append(error.message)
    except Exception:
        row["fault"] = traceback.format_exc(limit=-3)
    row["refused"] += [problem.message for problem in problems]
    row["seconds"] = round(time.perf_counter() - begin, 3)
    read = "read" if row["chains"] else "refused"
    row["outcome"] = "fault" if row["fault"] else read
    return row


if __name__ == "__main__":
    raise SystemExit(main())
