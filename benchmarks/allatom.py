"""Samples of whole entries on one core: the host's part of OpenFold3's view, sample by sample.

    python benchmarks/allatom.py ../shared/golden/allatom --out benchmarks/results/allatom.json

Reads the recorded entries of a pack, plans samples at a crop of 384 with 1,024 rows sent, and
prints CPU time (of the thread, median of the samples of an entry) and bytes that go to the device.
Beside it stand the costs that the pack recorded of OpenFold3's own featurizer, one thread, on
another day: read them as an order of magnitude, they are no race.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import pickle
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
CROP, ROWS, SAMPLES = 384, 1024, 12


def columns(pack: Path) -> dict[str, Any]:
    """Columns of every recorded entry and of its alignments; tests read them, checks and all."""
    sys.path.insert(0, str(ROOT))
    from tests.loader.views.openfold3_recorded import recorded_alignments
    from tests.loader.views.packs import entry_view

    def plain(one: Any) -> dict[str, Any]:
        return {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}

    found = {}
    for path in sorted((pack / "openfold3" / "structure").glob("*.npz")):
        view = entry_view("openfold3", pack, path.stem)
        found[path.stem] = plain(view), [plain(one) for one in recorded_alignments(pack, view)]
    return found


def measure(path: Path) -> list[dict[str, Any]]:
    """CPU time and bytes of each entry's samples, in a process without checks of types."""
    from evofeed.loader.views.entry_view import EntryView
    from evofeed.loader.views.openfold3.config import OpenFold3Config
    from evofeed.loader.views.openfold3.draws import CounterDraws
    from evofeed.loader.views.openfold3.plan import plan_sample
    from evofeed.protein.alignment import Alignment

    config = OpenFold3Config(token_budget=CROP, used_rows=ROWS)
    rows = []
    for entry, (view_columns, others) in pickle.loads(path.read_bytes()).items():
        view = EntryView(**view_columns)
        alignments = [Alignment(**one) for one in others]
        times, sizes = [], []
        for key in range(-1, SAMPLES):  # the first loads what is compiled
            point = (key % view.num_chains,)
            begun = time.thread_time()
            packed = plan_sample(view, alignments, point, CounterDraws(key + 1), config)
            times.append(1000 * (time.thread_time() - begun))
            sizes.append(sum(value.nbytes for value in packed.values()))
        rows.append(
            {
                "entry": entry,
                "tokens": view.num_tokens,
                "atoms": view.num_atoms,
                "cpu_ms": round(statistics.median(times[1:]), 2),
                "cpu_ms_most": round(max(times[1:]), 2),
                "nbytes": max(sizes),
            }
        )
    return rows


def recorded(pack: Path) -> dict[str, float]:
    """What the pack recorded of OpenFold3's own samples of that crop, medians."""
    costs = []
    for path in sorted((pack / "openfold3" / "samples").glob("*.npz")):
        with np.load(path) as members:
            about = json.loads(members["__schema__"].tobytes())
        if about["token_budget"] == CROP:
            costs.append(about["cost"])
    return {
        "samples": len(costs),
        "cpu_s": statistics.median(one["cpu_s"] for one in costs),
        "nbytes": statistics.median(one["bytes"] for one in costs),
    }


def main() -> None:
    """Measure and print; with --out also write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("pack", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--columns", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.columns:
        sys.stdout.buffer.write(pickle.dumps(columns(asked.pack)))
        return
    if asked.measure:
        print(json.dumps(measure(asked.pack)))
        return
    again = [sys.executable, __file__]
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        file.write(subprocess.check_output([*again, str(asked.pack), "--columns"]))
        file.flush()
        rows = json.loads(subprocess.check_output([*again, file.name, "--measure"]))
    result = {
        "command": "python benchmarks/allatom.py PACK",
        "date": datetime.date.today().isoformat(),
        "machine": platform.machine(),
        "crop": CROP,
        "rows_sent": ROWS,
        "samples_of_an_entry": SAMPLES,
        "cpu_ms_median": round(statistics.median(row["cpu_ms"] for row in rows), 2),
        "cpu_ms_most": max(row["cpu_ms_most"] for row in rows),
        "nbytes_most": max(row["nbytes"] for row in rows),
        "openfold3_as_recorded": recorded(asked.pack),
        "entries": rows,
    }
    print(json.dumps(result, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
