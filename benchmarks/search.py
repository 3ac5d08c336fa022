"""What packing, de-duplication and the cache gain beside a shell loop of the same programs.

    python benchmarks/search.py [--sequences 200] [--loop-every 20] [--cost] [--out RESULT.json]

Three databases (FASTA with jackhmmer, hh-suite with hhblits, mmseqs) of simulated families; a
third of the sequences are copies or near-copies of others. The loop calls the programs one after
another with the same options and as many threads as there are cores; where it would take long it
is timed on every n-th sequence, which the result says. Needs hmmer, hhsuite and mmseqs2.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recording import about, command, save

from evofeed.featurize.inputs.sources import ChainSource
from evofeed.featurize.search import Database, SearchConfig, SearchOptions, run_search
from evofeed.featurize.search.programs import Scratch, version
from evofeed.featurize.search.searchers import Query, search

_LETTERS = "ARNDCQEGHILKMFPSTWYV"
_CORES = len(os.sched_getaffinity(0))
_TURNS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=200)
    parser.add_argument("--records", type=int, default=3000)
    parser.add_argument("--loop-every", type=int, default=20)
    parser.add_argument("--cost", action="store_true", help="measure only this, into --out")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/search.json"))
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="evofeed-search-"))
    if args.cost:
        found = json.loads(args.out.read_text()) | {
            "cost_of_the_job": _cost(folder, *_cost_of(folder, args.sequences, args.records)),
            "cost_command": command(),
        }
        shutil.rmtree(folder)
        save(args.out, found)
        return
    try:
        found = measure(folder, args.sequences, args.records, args.loop_every)
    finally:
        shutil.rmtree(folder)
    programs = [version(name) for name in ("jackhmmer", "hhblits", "mmseqs")]
    save(args.out, found | about() | {"programs": programs})


def measure(folder: Path, count: int, num_records: int, every: int) -> dict[str, Any]:
    draw = random.Random(0)
    first = ["".join(draw.choices(_LETTERS, k=draw.randint(80, 300))) for _ in range(count)]
    unique = count - count // 3
    sequences = first[:unique] + [
        _changed(draw.choice(first[:unique]), 0.02 if n % 2 else 0.0, draw)
        for n in range(count - unique)
    ]
    databases = _databases(folder, first, num_records, draw)
    chains = [ChainSource(f"c{n}", sequence=s) for n, s in enumerate(sequences)]
    config, options = SearchConfig(max_hits=10_000), SearchOptions(workers=_CORES)

    def timed(out: str) -> tuple[float, Any]:
        began = time.perf_counter()
        report = run_search(chains, out, databases, config=config, options=options)
        assert not report.broken, report.broken[0]
        return time.perf_counter() - began, report

    asked = sequences[::every]
    halves = asked[::2], asked[1::2]  # before and after ours, since other work comes and goes
    loads = [os.getloadavg()[0]]
    before = [_loop(folder, db, halves[0], config) for db in databases]
    loads.append(os.getloadavg()[0])
    seconds, report = timed(str(folder / "out"))
    loads.append(os.getloadavg()[0])
    again, known = timed(str(folder / "out"))
    assert known.searched == 0 and known.digest == report.digest
    after = [_loop(folder, db, halves[1], config) for db in databases]
    share = count / len(asked)
    loops = {db.name: (a + b) * share for db, a, b in zip(databases, before, after, strict=True)}
    return {
        "sequences": count,
        "different": report.num_sequences,
        "searched": report.searched,
        "seconds": round(seconds, 2),
        "loop_seconds": {name: round(value, 2) for name, value in loops.items()},
        "loop_timed_on": len(asked),
        "loop_halves": {"before": round(sum(before), 2), "after": round(sum(after), 2)},
        "loads": [round(load, 1) for load in [*loads, os.getloadavg()[0]]],
        "faster": round(sum(loops.values()) / seconds, 2),
        "worker_seconds": {d["name"]: d["worker_seconds"] for d in report.databases},
        "cache_ms_per_sequence": round(1e3 * again / report.num_sequences, 3),
    }


def _cost_of(
    folder: Path, count: int, num_records: int
) -> tuple[Database, list[str], SearchConfig]:
    """A FASTA database, and sequences with relatives in it."""
    draw = random.Random(0)
    kin = ["".join(draw.choices(_LETTERS, k=draw.randint(80, 300))) for _ in range(count)]
    rows = (_changed(draw.choice(kin), 0.1 + 0.3 * draw.random(), draw) for _ in range(num_records))
    fasta = folder / "uniref90.fasta"
    fasta.write_text("".join(f">r{number}\n{row}\n" for number, row in enumerate(rows)))
    return Database("uniref90", str(fasta)), kin, SearchConfig(max_hits=10_000)


def _cost(
    folder: Path, database: Database, sequences: list[str], config: SearchConfig
) -> dict[str, Any]:
    """What plan, worker, cache and report add to the bare searches, on processes and on Ray.

    Takes turns, since other work comes and goes. On Ray the second half of the sequences counts,
    without what starting and ending Ray takes: a job of hours has that once.
    """
    queries = [Query(str(n), s) for n, s in enumerate(sequences)]
    chains = [ChainSource(f"c{n}", sequence=s) for n, s in enumerate(sequences)]

    def job(executor: str, count: int, out: str) -> None:
        options = SearchOptions(workers=1, executor=executor)
        run_search(chains[:count], str(folder / out), [database], config=config, options=options)

    ways: dict[str, Callable[[str], Any]] = {
        "bare": lambda _: search(database, queries, config, lambda: Scratch(600), lambda _: None),
        "job": lambda out: job("local", len(chains), out),
        "ray": lambda out: job("ray", len(chains), out),
        "ray_half": lambda out: job("ray", len(chains) // 2, out),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {"bare": [], "job": []}  # Ray's processes are not ours to count
    for turn in range(_TURNS):
        for name, way in ways.items():
            began, used = time.perf_counter(), sum(os.times()[:4])
            way(f"{name}{turn}")
            times[name].append(time.perf_counter() - began)
            if name in cpu:
                cpu[name].append(sum(os.times()[:4]) - used)
    median = {name: statistics.median(values) for name, values in times.items()}
    second = median["ray"] - median["ray_half"]
    return {
        "share": round(median["job"] / median["bare"] - 1, 4),
        "share_of_cpu": round(
            statistics.median(cpu["job"]) / statistics.median(cpu["bare"]) - 1, 4
        ),
        "share_on_ray": round(2 * second / median["bare"] - 1, 4),
        "ray_starts_and_ends_in": round(median["ray"] - 2 * second, 1),
        "seconds": {name: [round(value, 3) for value in values] for name, values in times.items()},
        "cpu_seconds": {name: [round(v, 2) for v in values] for name, values in cpu.items()},
        "load": round(os.getloadavg()[0], 1),
    }


def _loop(folder: Path, database: Database, sequences: list[str], config: SearchConfig) -> float:
    """A shell loop over sequences: the seconds it takes."""
    query, out = folder / "loop.fasta", folder / "loop"
    cores = str(_CORES)
    db = database.path
    script = {
        "fasta": f"jackhmmer -o /dev/null -A {out} --cpu {cores} -N 1 -E 0.0001 --incE 0.0001 "
        f"--noali --F1 0.0005 --F2 5e-05 --F3 5e-07 {query} {db}",
        "hh": f"hhblits -i {query} -d {db} -oa3m {out} -o /dev/null -cpu {cores} "
        + " ".join(config.hhblits),
        "mmseqs": f"mmseqs createdb {query} {out}q && mmseqs search {out}q {db} {out}h {out}tmp "
        f"--threads {cores} {' '.join(config.mmseqs)} && mmseqs result2msa {out}q {db} {out}h "
        f"{out} --msa-format-mode 5 --threads {cores}",
    }[str(database.kind)]
    began = time.perf_counter()
    for sequence in sequences:
        for old in folder.glob("loop*"):
            with contextlib.suppress(OSError):
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        query.write_text(f">query\n{sequence}\n")
        subprocess.run(["sh", "-c", script], check=True, capture_output=True)
    return time.perf_counter() - began


def _databases(
    folder: Path, kin: list[str], num_records: int, draw: random.Random
) -> list[Database]:
    records = [
        (f"r{n} TaxID={n}", _changed(draw.choice(kin), 0.1 + 0.3 * draw.random(), draw))
        for n in range(num_records)
    ]
    fasta = folder / "uniref90.fasta"
    fasta.write_text("".join(f">{name}\n{s}\n" for name, s in records))
    _run("mmseqs", "createdb", str(fasta), str(folder / "mm"))
    a3m, hhm = folder / "a3m", folder / "hhm"
    a3m.mkdir(), hhm.mkdir()
    for number, sequence in enumerate(kin[::20]):
        rows = [_changed(sequence, 0.05 * n, draw) for n in range(8)]
        text = "".join(f">f{number}_{n}\n{row}\n" for n, row in enumerate(rows))
        (a3m / f"f{number}").write_text(text)
        _run("hhmake", "-v", "0", "-i", str(a3m / f"f{number}"), "-o", str(hhm / f"f{number}"))
    for kind in (a3m, hhm):
        base = f"{folder / 'hh'}_{kind.name}"
        _run("ffindex_build", "-s", f"{base}.ffdata", f"{base}.ffindex", str(kind))
    translate = shutil.which("cstranslate") or "/usr/libexec/hhsuite/cstranslate-sse3"
    base = str(folder / "hh")
    options = ["-f", "-x", "0.3", "-c", "4", "-I", "a3m"]
    _run(translate, *options, "-i", f"{base}_a3m", "-o", f"{base}_cs219")
    return [
        Database("uniref90", str(fasta)),
        Database("bfd", base),
        Database("mm", str(folder / "mm")),
    ]


def _changed(sequence: str, share: float, draw: random.Random) -> str:
    return "".join(draw.choice(_LETTERS) if draw.random() < share else c for c in sequence)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    main()
