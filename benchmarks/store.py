"""Size and crop time of evofeed's shards beside other formats, on the same chains in one run.

    python benchmarks/store.py                 300 chains (2 GB of room, some minutes)
    python benchmarks/store.py --chains 2000   the full workload (12 GB)

A crop is 256 residues x 1152 random rows of MSA and deletions, 4 templates and
the structure, into preallocated buffers, one thread, page cache warm. Formats
take turns within each repeat, so that noise of the machine hits all alike; a
chain's time is the best of its repeats. CPU is that of the process, helper threads included.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from store_peers import PEERS, crop_plainly, raw_arrays
from store_workload import workload_chain

from evofeed.features import RECORD, ChainRecord
from evofeed.store import Dataset, DatasetWriter

WIDTH, ROWS = 256, 1152
TARGETS = {"ratio": 0.27, "zstd_ratio": 0.15, "cpu_us": 120, "verified_cpu_us": 190}
Plan = tuple[int, dict[str, np.ndarray], int, int, np.ndarray]
PACKED = (
    "aatype",
    "residue_index",
    "hhblits_profile_counts",
    "msa_order",
    "deletion_row",
    "deletion_column",
    "deletion_count",
    "msa",
    "all_atom_mask",
    "all_atom_positions",
    "template_aatype",
    "template_center",
    "template_all_atom_mask",
    "template_all_atom_positions",
)


def main() -> None:
    """Write, read in turns, print the table, keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chains", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", help="where to write; default a temporary folder")
    parser.add_argument("--out", default="benchmarks/results/store.json")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        report = measure(folder, arguments.chains, arguments.repeats)
    finally:
        shutil.rmtree(folder)
    Path(arguments.out).write_text(json.dumps(report, indent=1) + "\n")
    table = markdown(report)
    Path(arguments.out).with_suffix(".md").write_text(table)
    print(table)


def measure(folder: Path, chains: int, repeats: int) -> dict[str, Any]:
    """Everything of the report."""
    records = [workload_chain(number) for number in range(chains)]
    raw_nbytes = sum(a.nbytes for record in records for a in raw_arrays(record).values())
    record_nbytes = sum(record_size(record) for record in records)
    sizes: dict[str, int] = {}
    write_seconds: dict[str, float] = {}
    for name, zstd in (("evofeed", False), ("evofeed zstd", True)):
        begin = time.perf_counter()
        writer = DatasetWriter(str(folder / name), zstd=zstd)
        for record in records:
            writer.add(record)
        writer.commit()
        write_seconds[name] = time.perf_counter() - begin
        sizes[name] = size_of(folder / name / "shards")
    readers, missing = {}, {}
    for name, make in PEERS.items():
        try:
            write, read = make()
        except ImportError as error:
            missing[name] = str(error)
            continue
        begin = time.perf_counter()
        write(folder / name, (raw_arrays(record) for record in records))
        write_seconds[name] = time.perf_counter() - begin
        sizes[name] = size_of(folder / name)
        readers[name] = read(folder / name)
    shapes = [(record.num_res, record.num_alignments) for record in records]
    del records
    dataset, zipped = Dataset.open(folder / "evofeed"), Dataset.open(folder / "evofeed zstd")
    crops = crop_times(plans(shapes), dataset, zipped, readers, repeats)
    exact = exact_times(dataset, repeats)
    return {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions("numpy", "numba", "pyarrow", "safetensors", "pylance", "xxhash"),
        "workload": {
            "chains": chains,
            "mean_num_res": float(np.mean([s[0] for s in shapes])),
            "mean_num_alignments": float(np.mean([s[1] for s in shapes])),
            "raw_nbytes": raw_nbytes,
            "record_nbytes": record_nbytes,
            "crop": [ROWS, WIDTH],
            "repeats": repeats,
        },
        "targets": TARGETS,
        "missing": missing,
        "ratio": {name: size / raw_nbytes for name, size in sizes.items()},
        "write_seconds": write_seconds,
        "crop_us": crops,
        "exact_us": exact,
    }


def record_size(record: ChainRecord) -> int:
    """Bytes of every array of a record, deletions dense in u8."""
    names = [f.name for f in RECORD if f.dtype != "str" and not f.name.startswith("deletion")]
    return record.msa.nbytes + sum(getattr(record, name).nbytes for name in names)


def plans(shapes: list[tuple[int, int]]) -> list[Plan]:
    """Window, rows and buffers of each chain; the buffers are shared, as a ring would be."""
    rng = np.random.default_rng(0)
    pool = {
        "msa": np.zeros(ROWS * WIDTH, np.uint8),
        "deletion_matrix": np.zeros(ROWS * WIDTH, np.uint8),
        "template_all_atom_positions": np.zeros(4 * WIDTH * 111, np.float32),
        "template_all_atom_mask": np.zeros(4 * WIDTH * 37, np.uint8),
        "all_atom_positions": np.zeros(WIDTH * 111, np.float32),
        "all_atom_mask": np.zeros(WIDTH * 37, np.uint8),
    }
    made = []
    for number, (L, N) in enumerate(shapes):
        W, R = min(L, WIDTH), min(N, ROWS)
        start = int(rng.integers(0, L - W + 1))
        rows = np.sort(rng.permutation(N)[:R])
        made.append((number, views(pool, R, W), start, start + W, rows))
    return made


def views(pool: Mapping[str, np.ndarray], R: int, W: int) -> dict[str, np.ndarray]:
    """Arrays of a crop's shapes at the front of shared buffers."""
    shapes = {
        "msa": (R, W),
        "deletion_matrix": (R, W),
        "template_all_atom_positions": (4, W, 37, 3),
        "template_all_atom_mask": (4, W, 37),
        "all_atom_positions": (W, 37, 3),
        "all_atom_mask": (W, 37),
    }
    return {n: pool[n][: int(np.prod(shape))].reshape(shape) for n, shape in shapes.items()}


def crop_times(
    made: list[Plan],
    dataset: Dataset,
    zipped: Dataset,
    readers: Mapping[str, Callable[[int], Mapping[str, np.ndarray]]],
    repeats: int,
) -> dict[str, dict[str, float]]:
    """CPU and wall time of each format's crop, formats taking turns."""

    def ours(of: Dataset, verify: bool) -> Callable[[Plan], None]:
        def crop(plan: Plan) -> None:
            number, out, start, stop, rows = plan
            of.read_into(number, out, residues=(start, stop), rows=rows, verify=verify)

        return crop

    def peer(read: Callable[[int], Mapping[str, np.ndarray]]) -> Callable[[Plan], None]:
        def crop(plan: Plan) -> None:
            number, out, start, stop, rows = plan
            crop_plainly(read(number), out, start, stop, rows)

        return crop

    buffer = memoryview(bytearray(max(dataset.packed_nbytes(n, PACKED) for n in range(len(made)))))
    ways = {
        "evofeed, unverified": ours(dataset, False),
        "evofeed": ours(dataset, True),
        "evofeed packed read": lambda plan: void(dataset.read_packed(plan[0], PACKED, buffer)),
        "evofeed zstd": ours(zipped, True),
    } | {name: peer(read) for name, read in readers.items()}
    for way in ways.values():
        check_and_warm(way, ours(dataset, True), made[0])
    return timed(ways, made, repeats)


def void(_: object) -> None:
    return None


def check_and_warm(
    way: Callable[[Plan], None], reference: Callable[[Plan], None], plan: Plan
) -> None:
    """Every format must give the same crop."""
    reference(plan)
    right = {name: array.copy() for name, array in plan[1].items()}
    way(plan)
    for name, array in plan[1].items():
        assert np.array_equal(array, right[name]), name


def exact_times(dataset: Dataset, repeats: int) -> dict[str, dict[str, float]]:
    """All rows, full length, everything decoded, into preallocated buffers."""
    dims = dataset.spans.dims
    L, N = int(dims[:, 0].max()), int((dims[:, 0] * dims[:, 1]).max())
    pool = {
        "msa": np.zeros(N, np.uint8),
        "deletion_matrix": np.zeros(N, np.uint8),
        "template_all_atom_positions": np.zeros(4 * L * 111, np.float32),
        "template_all_atom_mask": np.zeros(4 * L * 37, np.uint8),
        "all_atom_positions": np.zeros(L * 111, np.float32),
        "all_atom_mask": np.zeros(L * 37, np.uint8),
    }
    whole = [
        (n, views(pool, int(dims[n, 1]), int(dims[n, 0])), 0, int(dims[n, 0]), np.zeros(0))
        for n in range(len(dims))
    ]
    ways = {
        "evofeed": lambda plan: dataset.read_into(plan[0], plan[1]),
        "evofeed, unverified": lambda plan: dataset.read_into(plan[0], plan[1], verify=False),
    }
    return timed(ways, whole, repeats)


def timed(
    ways: Mapping[str, Callable[[Plan], None]], made: list[Plan], repeats: int
) -> dict[str, dict[str, float]]:
    """Per way: mean, p50 and p99 over chains of the best of the repeats, in µs."""
    cpu = {name: np.full(len(made), np.inf) for name in ways}
    wall = {name: np.full(len(made), np.inf) for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            for i, plan in enumerate(made):
                begin, begin_cpu = time.perf_counter_ns(), time.process_time_ns()
                way(plan)
                spent_cpu, spent = (
                    time.process_time_ns() - begin_cpu,
                    time.perf_counter_ns() - begin,
                )
                cpu[name][i] = min(cpu[name][i], spent_cpu / 1e3)
                wall[name][i] = min(wall[name][i], spent / 1e3)
    return {
        name: {
            "cpu_mean": float(cpu[name].mean()),
            "cpu_p50": float(np.median(cpu[name])),
            "cpu_p99": float(np.percentile(cpu[name], 99)),
            "wall_mean": float(wall[name].mean()),
            "wall_p99": float(np.percentile(wall[name], 99)),
        }
        for name in ways
    }


def size_of(path: Path) -> int:
    """Bytes of a file or of all files below a folder."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(file.stat().st_size for file in files)


def machine() -> dict[str, Any]:
    """What it ran on."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "commit": commit,
    }


def versions(*names: str) -> dict[str, str]:
    """Installed versions, those that there are."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def markdown(report: Mapping[str, Any]) -> str:
    """The report as a table."""
    work = report["workload"]
    lines = [
        f"`{report['command']}` · {report['date']} · {report['machine']['cpu']}, one thread",
        f"{work['chains']} chains, mean {work['mean_num_alignments']:.0f} rows x "
        f"{work['mean_num_res']:.0f} residues, {work['raw_nbytes'] / 1e6:.0f} MB raw; "
        f"crop {ROWS} x {WIDTH}; best of {work['repeats']}. Raw: the six arrays of a crop; peers "
        "hold just those, evofeed whole records "
        f"({report['ratio']['evofeed'] * work['raw_nbytes'] / work['record_nbytes']:.3f} of all "
        "their arrays).",
        "",
        "| format | bytes / raw | CPU µs a crop: mean | p50 | p99 | wall mean | wall p99 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, t in sorted(report["crop_us"].items(), key=lambda item: item[1]["cpu_mean"]):
        stored = (
            "evofeed zstd" if name == "evofeed zstd" else name.split(",")[0].split(" packed")[0]
        )
        lines.append(
            f"| {name} | {report['ratio'][stored]:.3f} | {t['cpu_mean']:.0f} | {t['cpu_p50']:.0f} "
            f"| {t['cpu_p99']:.0f} | {t['wall_mean']:.0f} | {t['wall_p99']:.0f} |"
        )
    lines += ["", "Exact read (all rows, full length):", ""]
    for name, t in report["exact_us"].items():
        lines.append(f"- {name}: CPU {t['cpu_mean']:.0f} µs mean, p99 {t['cpu_p99']:.0f}")
    if report["missing"]:
        lines += ["", f"Not installed, not measured: {', '.join(report['missing'])}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
