"""What ten million chains cost the service's index, the loader's planner and the job's driver.

    PYTHONPATH=src python benchmarks/scale/ten_million.py --out benchmarks/results/ten_million.json
    PYTHONPATH=src python benchmarks/scale/ten_million.py --rows 20000 --chains 2000 --units 40

`index`: synthetic rows in one Arrow file, memory-mapped as the service maps a snapshot's, and
asked what the service and a loader ask. `driver`: a job's plan of so many synthetic chains, whose
inputs are spans of one file (as of an `alignment_db`); the ledger's entry of it; then the real
driver over an executor that answers at once, so its rate is what the driver alone can settle.
Each part is a process of its own, so that its peak of memory is its own.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import multiprocessing
import os
import platform
import resource
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
from benchmarks.service import Figures, large_index, timed

ROWS = 10_000_000
CHAINS = 1_000_000
UNITS = 3_000


def build_index(folder: Path, rows: int) -> float:
    """Writes `index.arrow`; seconds."""
    import pyarrow as pa

    began = time.perf_counter()
    table = large_index(0, rows)
    path = folder / "index.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return time.perf_counter() - began


def index(folder: Path, rows: int) -> Figures:
    """A snapshot's index of so many chains, written by `build_index`."""
    import pyarrow as pa

    from evofeed.loader import LoaderConfig, plan_samples
    from evofeed.service.filters.columns import Columns
    from evofeed.service.snapshots import chains
    from evofeed.store.inner import column_statistics

    path = folder / "index.arrow"
    mapped = pa.memory_map(str(path))
    opened = timed(lambda: pa.ipc.open_file(pa.memory_map(str(path))).read_all(), 3)
    table = pa.ipc.open_file(mapped).read_all()
    columns = chains.columns_of(table, None)
    common = {
        "all": [
            {"column": "num_res", "op": "<=", "value": 384},
            {"column": "resolution", "op": "<=", "value": 2.5},
            {"column": "release_date", "op": ">=", "value": "2018-01-01"},
            {"column": "method", "op": "in", "value": ["X-RAY DIFFRACTION"]},
        ]
    }
    last = f"{rows - 1}_A"
    config = LoaderConfig.initial_training()
    figures: Figures = {
        "rows": rows, "nbytes": path.stat().st_size,         "open": opened,
        "page_of_100_first": timed(lambda: chains.page(table, common, columns, 0, 100), 5),
        "page_of_1000_middle": timed(
            lambda: chains.page(table, common, columns, rows // 2, 1000), 5
        ),
        "exact_count": timed(lambda: chains.count(Columns(table), common), 3),
        "one_chain": timed(lambda: chains.row_of(table, last), 3),
    }  # fmt: skip
    figures["plan_of_a_rank_of_2048"] = timed(
        lambda: plan_samples(table, config, world_size=2048, rank=3), 1
    )
    figures["statistics_of_every_column"] = timed(lambda: column_statistics(table), 1)
    return figures | {"peak_gb": peak_gb()}


def driver(folder: Path, num_chains: int, num_units: int) -> Figures:
    """A job's plan, its entry in the ledger, and what the driver settles in a second."""
    from evofeed.featurize import FeaturizeConfig
    from evofeed.featurize.job import driver as driving
    from evofeed.featurize.job.host import JobHost
    from evofeed.featurize.job.inputs import KnownInputs
    from evofeed.featurize.job.ledger import Ledger
    from evofeed.featurize.job.options import JobOptions
    from evofeed.featurize.job.units import make_plan
    from evofeed.featurize.job.work import UnitResult, UnitTask
    from evofeed.featurize.reading import FileRef
    from evofeed.featurize.sources import ChainSource
    from evofeed.store.inner import hold, open_storage

    raw = folder / "alignments.db"
    raw.write_bytes(b"\0")
    config = FeaturizeConfig()
    rusage = peak_gb()
    began = time.perf_counter()
    sources = [
        ChainSource(
            f"{number:07x}_A",
            alignments=(FileRef("bfd_uniref_hits.a3m", str(raw), number * 4096, 4096),),
            sequence="MKV",
        )
        for number in range(num_chains)
    ]
    made, busy = time.perf_counter(), [time.process_time()]
    plan = make_plan(sources, config, None, KnownInputs(str(folder)))
    planned = time.perf_counter()
    busy.append(time.process_time())
    ledger = Ledger(str(folder / "ledger.sqlite"))
    where = {"input_uri": str(folder), "dataset_uri": str(folder / "data"), "arguments": {}}
    job = ledger.begin("0" * 64, plan, where, None)
    entered = time.perf_counter()

    class AtOnce:
        """An executor whose workers need no time."""

        def __init__(self) -> None:
            self.done: list[Any] = []

        def room(self) -> int:
            return 64 - len(self.done)

        def submit(self, task: UnitTask) -> None:
            made = {"shard": {"records": []}, "num_chains": len(task.sources), "failures": ()}
            rest: dict[str, Any] = {"notes": {}, "inputs": {}}
            self.done.append(UnitResult(unit_id=task.unit_id, **made, **rest))

        def wait(self, timeout: float) -> list[Any]:
            done, self.done = self.done, []
            return done

    with (
        contextlib.closing(ledger),
        hold(open_storage(str(folder / "data")), "job", "bench") as lease,
    ):
        one = driving.Driver(
            ledger, job, plan, [], {}, KnownInputs(), config, None, JobOptions(executor="local"),
            None, None, lease, JobHost(),
        )  # fmt: skip
        waiting = deque(unit.unit_id for unit in plan.units[:num_units])
        start, busy_at_start = time.perf_counter(), time.process_time()
        one._feed(AtOnce(), waiting)
        settled, busy_settling = time.perf_counter() - start, time.process_time() - busy_at_start
        size = (folder / "ledger.sqlite").stat().st_size
    units = len(plan.units)
    return {
        "chains": num_chains, "units": units, "settled_units": min(num_units, units),
        "sources_us_a_chain": round((made - began) / num_chains * 1e6, 2),
        "plan_cpu_us_a_chain": round((busy[1] - busy[0]) / num_chains * 1e6, 2),
        "plan_us_a_chain": round((planned - made) / num_chains * 1e6, 2),
        "ledger_entry_us_a_unit": round((entered - planned) / units * 1e6, 2),
        "settle_cpu_ms_a_unit": round(busy_settling / min(num_units, units) * 1e3, 3),
        "settle_ms_a_unit": round(settled / min(num_units, units) * 1e3, 3),
        "units_a_second": round(min(num_units, units) / settled, 1),
        "ledger_bytes_a_chain": round(size / num_chains, 1),
        "peak_gb": peak_gb(), "peak_bytes_a_chain": round((peak_gb() - rusage) * 1e9 / num_chains),
    }  # fmt: skip


def peak_gb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 3)


def apart(function: Callable[..., Any], *args: Any) -> Any:
    """What a function finds in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def measured(part: str, options: argparse.Namespace) -> Figures:
    with tempfile.TemporaryDirectory(prefix="evofeed-scale-", dir=options.scratch) as folder:
        if part == "driver":
            found: Figures = apart(driver, Path(folder), options.chains, options.units)
            return found
        built = apart(build_index, Path(folder), options.rows)
        return apart(index, Path(folder), options.rows) | {"build_seconds": round(built, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--chains", type=int, default=CHAINS)
    parser.add_argument("--units", type=int, default=UNITS)
    parser.add_argument("--parts", nargs="+", default=["driver", "index"])
    parser.add_argument("--scratch", type=Path, help="folder for an index of some GB")
    parser.add_argument("--out", type=Path, help="parts that were not measured now stay in it")
    options = parser.parse_args()
    before = options.out and options.out.is_file() and json.loads(options.out.read_text())
    result: Figures = before or {}
    for part in options.parts:
        facts = {
            "command": f"python benchmarks/scale/ten_million.py --parts {part} --rows "
            f"{options.rows} --chains {options.chains} --units {options.units}",
            "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
            "load": os.getloadavg()[0],
            "versions": {"python": platform.python_version()}
            | {name: version(name) for name in ("pyarrow", "numpy", "sqlalchemy")},
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        result[part] = facts | measured(part, options)
        print(json.dumps({part: result[part]}), flush=True)
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
