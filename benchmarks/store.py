"""Size and crop time of evofeed's shards beside other formats, on the same chains in one run.

    python benchmarks/store.py                 300 chains, 2 GB of disk, some minutes
    python benchmarks/store.py --chains 2000   the full workload, 9 GB of disk
    pip install -r benchmarks/store_peers.txt  first, in an environment of its own, for all peers

A crop is 256 residues x 1152 random rows of MSA and deletions, 4 templates and
the structure, one thread, page cache warm. Peers come one
after the other, each deleted when it is done, so that page cache and disk hold it; within
each repeat evofeed and the peer take turns, so that noise of the machine hits both alike.
A chain's time is the best of its repeats. CPU is that of the process, helper threads included.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from recording import about, save
from store_peers import PEERS, crop_plainly, raw_arrays
from store_workload import workload_chain

from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.features import RECORD
from evofeed.store import Dataset, DatasetWriter

WIDTH, ROWS = 256, 1152
PACKAGES = ("numpy", "pyarrow", "pylance", "mosaicml-streaming", "xxhash")
Plan = tuple[int, dict[str, np.ndarray], int, int, np.ndarray]
COLUMNS = (
    *("msa", "deletion_matrix", "template_all_atom_positions", "template_all_atom_mask"),
    *("all_atom_positions", "all_atom_mask"),
)


def main() -> None:
    """Write, read in turns, print and keep the figures."""
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
    save(arguments.out, report)
    for name, t in sorted(report["crop_us"].items(), key=lambda item: item[1]["cpu_mean"]):
        print(f"{name}: {report['ratio'][name]:.3f} of raw, {t['cpu_mean']:.0f} us of CPU a crop")


def measure(folder: Path, chains: int, repeats: int) -> dict[str, Any]:
    """Everything of the report."""
    load = os.getloadavg()
    sizes, seconds, totals = write_ours(folder, chains)
    dataset, zipped = Dataset.open(folder / "evofeed"), Dataset.open(folder / "evofeed zstd")
    dims = dataset.spans.dims
    made = plans([(int(L), int(N)) for L, N in dims[:, :2]])
    crops = timed(our_ways(dataset, zipped), made, repeats)
    read_raw = PEERS["Arrow IPC raw"]()[1](folder / "Arrow IPC raw")
    beside, missing = {}, {}
    for name in sorted(PEERS, key=lambda name: name == "Arrow IPC raw"):  # last: others read it
        try:
            write, read = PEERS[name]()
        except ImportError as error:
            missing[name] = str(error)
            continue
        path = folder / name
        if name != "Arrow IPC raw":
            begin = time.perf_counter()
            write(path, (read_raw(number) for number in range(chains)))
            seconds[name] = time.perf_counter() - begin
        sizes[name] = size_of(path)
        ways = {"evofeed": our_ways(dataset, zipped)["evofeed"], name: peer_way(read(path))}
        for plan in made:  # every chain: right, and in the page cache
            check(ways[name], ways["evofeed"], plan)
        found = timed(ways, made, repeats)
        crops[name], beside[name] = found[name], found["evofeed"]
        print(f"{name}: {found[name]['cpu_mean']:.0f} us", file=sys.stderr, flush=True)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return {
        **about(*PACKAGES),
        "load_before": load,
        "workload": {
            "chains": chains,
            "mean_num_res": float(dims[:, 0].mean()),
            "mean_num_alignments": float(dims[:, 1].mean()),
            **totals,
            "crop": [ROWS, WIDTH],
            "repeats": repeats,
        },
        "missing": missing,
        "ratio": {name: size / totals["raw_nbytes"] for name, size in sizes.items()},
        "write_seconds": seconds,
        "crop_us": crops,
        "evofeed_in_the_same_turns_us": beside,
    }


def write_ours(
    folder: Path, chains: int
) -> tuple[dict[str, int], dict[str, float], dict[str, int]]:
    """Make each chain once: into both tiers of evofeed, and raw for the peers to be made from."""
    tiers = {
        name: DatasetWriter(str(folder / name), zstd=zstd)
        for name, zstd in (("evofeed", False), ("evofeed zstd", True))
    }
    seconds = dict.fromkeys([*tiers, "Arrow IPC raw"], 0.0)
    totals = {"raw_nbytes": 0, "record_nbytes": 0}

    def raw() -> Iterator[Mapping[str, np.ndarray]]:
        for number in range(chains):
            record = workload_chain(number)
            for name, writer in tiers.items():
                begin = time.perf_counter()
                writer.add(record)
                seconds[name] += time.perf_counter() - begin
            arrays = raw_arrays(record)
            totals["raw_nbytes"] += sum(array.nbytes for array in arrays.values())
            totals["record_nbytes"] += record_size(record)
            begin = time.perf_counter()
            yield arrays
            seconds["Arrow IPC raw"] += time.perf_counter() - begin

    PEERS["Arrow IPC raw"]()[0](folder / "Arrow IPC raw", raw())
    for name, writer in tiers.items():
        begin = time.perf_counter()
        writer.commit()
        seconds[name] += time.perf_counter() - begin
    return {name: size_of(folder / name / "shards") for name in tiers}, seconds, totals


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


def our_ways(dataset: Dataset, zipped: Dataset) -> dict[str, Callable[[Plan], None]]:
    """A checked crop of each tier, by `Dataset.read`."""

    def ours(of: Dataset) -> Callable[[Plan], None]:
        def crop(plan: Plan) -> None:
            number, out, start, stop, rows = plan
            (found,) = of.read([number], COLUMNS, slice(start, stop), rows)
            for name, array in out.items():
                array[...] = found[name]

        return crop

    return {"evofeed": ours(dataset), "evofeed zstd": ours(zipped)}


def peer_way(read: Callable[[int], Mapping[str, np.ndarray]]) -> Callable[[Plan], None]:
    """The same crop of what a peer's reader gives."""

    def crop(plan: Plan) -> None:
        number, out, start, stop, rows = plan
        crop_plainly(read(number), out, start, stop, rows)

    return crop


def check(way: Callable[[Plan], None], reference: Callable[[Plan], None], plan: Plan) -> None:
    """Every format must give the same crop."""
    reference(plan)
    right = {name: array.copy() for name, array in plan[1].items()}
    way(plan)
    for name, array in plan[1].items():
        assert np.array_equal(array, right[name]), name


def timed(
    ways: Mapping[str, Callable[[Plan], None]], made: list[Plan], repeats: int
) -> dict[str, dict[str, float]]:
    """Per way: mean, p50 and p99 over chains of the best of the repeats, in µs."""
    for way in ways.values():
        way(made[0])  # compiled, if it is
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


if __name__ == "__main__":
    main()
