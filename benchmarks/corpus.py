"""What becomes of every file of a folder: chains, a reason with a next step, or a fault of ours.

    python benchmarks/corpus.py FOLDER --out benchmarks/results/corpus.json

FOLDER holds files as people have them, `<owner>/<name>/...` as clones of public repositories do;
the script fetches nothing. Each file is read by its parser, as we do and as OpenFold does, and
made a data set of its own where it can be one. That happens in a process of its own: a file that
kills it, or takes more than a minute, is a fault of ours, and so is any exception that is not an
`InputError`. The exit code is then 1. The result has counts by repository and kind, reasons, how
many entries that are there in several formats (by file name) gave the same chains, and CPU
nanoseconds a byte (of files above 20 kB, without unpacking); `--files` keeps a row a file.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import multiprocessing
import os
import platform
import re
import statistics
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from evofeed.errors import EvofeedError, InputError
from evofeed.featurize import FeaturizeConfig, discover, featurize_chain
from evofeed.featurize.a3m import parse_a3m
from evofeed.featurize.fasta import parse_fasta
from evofeed.featurize.hits import parse_hhr
from evofeed.featurize.reading import file_ref, plain, read_bytes
from evofeed.featurize.stockholm import parse_stockholm
from evofeed.featurize.structure import Chain
from evofeed.featurize.structure_files import SUFFIXES, entry_of, parse_structure

FASTA = (".fasta", ".fa", ".faa")
INPUTS = (*SUFFIXES, *FASTA, ".a3m", ".json", ".yaml", ".yml", ".csv", ".aligned.pqt", ".ffindex")
KINDS = (*INPUTS, ".sto", ".hhr")
MODES = {"default": FeaturizeConfig(), "openfold": FeaturizeConfig.openfold()}
DEADLINE_S = 60.0
TIMED_NBYTES = 20_000
_VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|\S*\d\S*")


def main() -> int:
    """Go through the folder, print a table, write counts and reasons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("corpus.json"))
    parser.add_argument("--files", type=Path, help="a row a file, for a closer look")
    parser.add_argument("--most-mib", type=float, default=50, help="larger files are left out")
    arguments = parser.parse_args()
    paths = list(files(arguments.folder, int(arguments.most_mib * 2**20)))
    rows = [row | {"repository": repository(path, arguments.folder)}
            for path, row in zip(paths, guarded(paths), strict=True)]  # fmt: skip
    result = {"command": "python benchmarks/corpus.py FOLDER", **conditions(), **summary(rows)}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.files:
        arguments.files.write_text(json.dumps(rows, indent=1) + "\n")
    for kind, counts in result["kinds"].items():
        print(kind, counts, result["ns_per_byte"].get(kind, ""))
    for row in rows:
        for where, text in row["faults"].items():
            print(f"FAULT {row['path']} {where}: {text}")
    print("entries in several formats:", result["entries_in_several_formats"])
    print(f"{result['files']} files, {result['faults']} faults of ours")
    return 1 if result["faults"] else 0


def files(folder: Path, most_nbytes: int) -> Iterator[Path]:
    """The files of kinds that are read, in order of name."""
    for home, below, names in os.walk(folder):
        below.sort()
        for name in sorted(names):
            path = Path(home) / name
            known = plain(name).endswith(KINDS) and path.is_file()
            if known and path.stat().st_size <= most_nbytes:
                yield path


def repository(path: Path, folder: Path) -> str:
    """`<owner>/<name>` of a file, or what there is of it."""
    return "/".join(path.relative_to(folder).parts[:-1][:2]) or "."


def guarded(paths: list[Path]) -> Iterator[dict[str, Any]]:
    """What became of each file, found out in a process that may die or hang of it."""
    pool = None
    for path in paths:
        pool = pool or ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        future = pool.submit(outcome, path)
        try:
            yield future.result(DEADLINE_S)
        except (BrokenProcessPool, TimeoutError) as error:
            what = "its process died" if isinstance(error, BrokenProcessPool) else "took too long"
            yield empty_row(path) | {"faults": {"process": what}}
            for process in list(pool._processes.values()):
                process.kill()
            pool.shutdown(wait=True, cancel_futures=True)
            pool = None
    if pool:
        pool.shutdown()


def empty_row(path: Path) -> dict[str, Any]:
    """A file of which nothing is known yet."""
    kind = Path(plain(path.name)).suffix
    known = {"path": str(path), "kind": kind, "chains": 0, "ns": None, "content": None}
    return {**known, "refused": {}, "faults": {}}


def outcome(path: Path) -> dict[str, Any]:
    """What became of one file: by its parser in both modes, and as an input."""
    row = empty_row(path)
    for mode, config in MODES.items():
        took = noted(row, mode, lambda config=config: parsed(path, config))  # type: ignore[misc]
        if mode == "default" and took and took[1] >= TIMED_NBYTES:
            again = (parsed(path, config) for _ in range(3))  # warm, the best of them
            row["ns"] = round(min(run[0] for run in again if run) / took[1], 2)
        if mode == "default" and took and took[2]:
            row["entry"] = entry_of(plain(path.name)).lower()
            row["content"] = took[2]
    if plain(path.name).endswith(INPUTS):
        noted(row, "input", lambda: featurized(path, row))
    return row


def noted(row: dict[str, Any], where: str, work: Any) -> Any:
    """What the work gave; a refusal or a fault is written down."""
    try:
        return work()
    except EvofeedError as error:
        row["refused"][where] = error.message
        if not isinstance(error, InputError):
            row["faults"][where] = str(error)
    except Exception:
        row["faults"][where] = traceback.format_exc(limit=-3)
    return None


def parsed(path: Path, config: FeaturizeConfig) -> tuple[int, int, str] | None:
    """Nanoseconds and bytes of parsing a file, every chain placed; None if it has no parser.

    Of a structure also a digest of its chains: sequences, positions and masks.
    """
    name = plain(path.name)
    data = read_bytes(file_ref(path), config.caps)
    chains: list[Chain] = []
    start = time.process_time_ns()
    if name.endswith(SUFFIXES):
        structure = parse_structure(data, name, path=str(path), config=config)
        chains = [structure.chain(chain) for chain in structure.sequences]
    elif name.endswith(".a3m"):
        parse_a3m(data, path=str(path), strict_letters=config.strict_letters)
    elif name.endswith(".sto"):
        parse_stockholm(data, path=str(path), strict_letters=config.strict_letters)
    elif name.endswith(".hhr"):
        parse_hhr(data, path=str(path), old_hhr=config.old_hhr)
    elif name.endswith(FASTA):
        parse_fasta(data, path=str(path))
    else:
        return None
    took = time.process_time_ns() - start
    content = hashlib.sha256()
    for chain in sorted(chains, key=lambda chain: chain.chain_id):
        content.update(f"{chain.chain_id} {chain.sequence}".encode())
        content.update(chain.positions.tobytes() + chain.mask.tobytes())
    return took, len(data), content.hexdigest() if chains else ""


def featurized(path: Path, row: dict[str, Any]) -> None:
    """Every chain of the file as an input; chains that are refused are counted by reason."""
    problems: list[InputError] = []
    reasons = []
    for source in discover(path, problems=problems):
        try:
            featurize_chain(source)
            row["chains"] += 1
        except InputError as error:
            reasons.append(error.message)
    reasons += [problem.message for problem in problems]
    if reasons:
        row["refused"]["input"] = "; ".join(dict.fromkeys(reasons))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts by repository and kind, speed, and how often each reason was given."""
    repositories: dict[str, Counter[str]] = defaultdict(Counter)
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    speed: dict[str, list[float]] = defaultdict(list)
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for counts in (repositories[row["repository"]], kinds[row["kind"]]):
            counts["files"] += 1
            counts["chains"] += row["chains"]
            counts["faults"] += bool(row["faults"])
            counts.update(f"refused by {where}" for where in row["refused"])
        if row["ns"] is not None and "default" not in row["refused"]:
            speed[row["kind"]].append(row["ns"])
        for where, why in row["refused"].items():
            reasons[where][_VALUES.sub("…", why)[:160]] += 1
    entries: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in rows:
        if row["content"]:
            entries[row["entry"]][row["kind"]].add(row["content"])
    several = [list(kinds.values()) for kinds in entries.values() if len(kinds) > 1]
    same = sum(any(one & two for one, two in combinations(found, 2)) for found in several)
    return {
        "entries_in_several_formats": {"all": len(several), "same_chains_to_the_bit": same},
        "files": len(rows),
        "faults": sum(bool(row["faults"]) for row in rows),
        "repositories": {name: dict(repositories[name]) for name in sorted(repositories)},
        "kinds": {kind: dict(kinds[kind]) for kind in sorted(kinds)},
        "ns_per_byte": {
            kind: {
                "files": len(values),
                "median": round(statistics.median(values), 1),
                "worst": round(max(values), 1),
            }
            for kind, values in sorted(speed.items())
        },
        "reasons": {where: dict(counts.most_common()) for where, counts in sorted(reasons.items())},
    }


def conditions() -> dict[str, Any]:
    """Machine, versions and date."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "versions": {name: version(name) for name in ("gemmi", "biopython", "numpy", "numba")},
    }


if __name__ == "__main__":
    raise SystemExit(main())
