"""Disk and CPU a sample of the sets of Boltz, OpenFold3 and Protenix, and of shards made of them.

    python benchmarks/published_sets.py --peers PYTHON --openfold3 SOURCES --protenix SOURCES

The same made-up chains are written as each project publishes them and imported. Then each
project's own code reads every chain to arrays (Boltz: `load_input`; OpenFold3:
`parse_msas_preparsed` and `read_atomarray_from_npz`; Protenix: `load_gzip_pickle` and
`RawMsa.from_a3m(...).featurize()`), and evofeed reads its shards to a full record; in turns, in
processes of one thread. `PYTHON` has boltz, biotite and what they need; OpenFold3's and
Protenix's sources lie in folders. Protenix's tokens are left out of its entries.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PEER = """
import json, sys, time
from pathlib import Path
import numpy as np
form, root, sources = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
sys.path.insert(0, sources)
if form == "boltz":
    from boltz.data.module.training import load_input
    from boltz.data.types import Manifest
    targets = root / "rcsb_processed_targets"
    work = [(r, targets, root / "rcsb_processed_msa")
            for r in Manifest.load(targets / "manifest.json").records]
    def read(record, targets, msa):
        found = load_input(record, targets, msa)
        (one,) = found.msa.values()
        return len(one.sequences), len(found.structure.atoms)
elif form == "openfold3":
    from openfold3.core.data.io.sequence.msa import parse_msas_preparsed
    from openfold3.core.data.io.structure.atom_array import read_atomarray_from_npz
    entries = sorted(p.name for p in (root / "structure_files").iterdir())
    work = [(root / "alignment_arrays" / f"{e}_A.npz", root / "structure_files" / e / f"{e}.npz")
            for e in entries]
    def read(msa, structure):
        found = parse_msas_preparsed([msa])
        atoms = read_atomarray_from_npz(structure)
        rows = sum(len(one.msa) for one in found.values()) - (len(found) - 1)
        return rows, int(np.isfinite(atoms.coord).all(-1).sum())
else:
    from protenix.data.constants import PROTEIN_CHAIN
    from protenix.data.msa.msa_utils import RawMsa
    from protenix.utils.file_io import load_gzip_pickle
    index = json.loads((root / "common" / "seq_to_pdb_index.json").read_text())
    work = [(p, index) for p in sorted((root / "mmcif_bioassembly").iterdir())]
    def read(path, index):
        entry = load_gzip_pickle(path)
        sequence = entry["sequences"]["1"]
        text = (root / "mmcif_msa_template" / str(index[sequence]) / "non_pairing.a3m").read_text()
        features = RawMsa.from_a3m(sequence, PROTEIN_CHAIN, text).featurize()
        return len(features["msa"]), int(entry["atom_array"].is_resolved.sum())
read(*work[0])
began, counts = time.process_time(), [0, 0]
for one in work:
    rows, atoms = read(*one)
    counts[0] += rows
    counts[1] += atoms
print(json.dumps({"ms": 1e3 * (time.process_time() - began) / len(work), "counts": counts}))
"""
_OURS = """
import json, sys, time
from evofeed.store import Dataset
dataset = Dataset.open(sys.argv[1])
names = list(dataset)
dataset[names[0]]
began, counts = time.process_time(), [0, 0]
for name in names:
    record = dataset[name]
    record.deletion_matrix()
    counts[0] += record.num_alignments
    counts[1] += int(record.all_atom_mask.sum())
print(json.dumps({"ms": 1e3 * (time.process_time() - began) / len(names), "counts": counts}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default=sys.executable, help="Python with boltz and biotite.")
    parser.add_argument("--site", default="", help="further folder of packages for that Python")
    parser.add_argument("--openfold3", default="", help="folder with OpenFold3's sources")
    parser.add_argument("--protenix", default="", help="folder with Protenix's sources")
    parser.add_argument("--chains", type=int, default=24)
    parser.add_argument("--residues", type=int, default=256)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/published_sets.json"))
    args = parser.parse_args()
    found: dict[str, Any] = {
        "command": "python " + " ".join(sys.argv),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "chains": args.chains,
        "residues": args.residues,
        "rows": args.rows,
        "repeats": args.repeats,
        "sets": {},
    }
    from benchmarks.made_up_chains import made_up_chain
    from tests.featurize.published_sets import write_boltz, write_openfold3, write_protenix

    records = [
        made_up_chain(f"{number:04d}_A", args.residues, args.rows, 0, number)
        for number in range(args.chains)
    ]
    writers: dict[str, Callable[..., Path]] = {
        "boltz": write_boltz,
        "openfold3": write_openfold3,
        "protenix": write_protenix,
    }
    sources = {"boltz": "", "openfold3": args.openfold3, "protenix": args.protenix}
    with tempfile.TemporaryDirectory(prefix="evofeed-published-") as folder:
        for form, write in writers.items():
            root = write(Path(folder) / form, records)
            found["sets"][form] = one = _compared(form, root, sources[form], args)
            print(form, json.dumps(one), flush=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n")


def _compared(form: str, root: Path, sources: str, args: argparse.Namespace) -> dict[str, Any]:
    from evofeed.featurize.job.run import run_job

    data = root.with_name(f"{form}_shards")
    began = time.perf_counter()
    report = run_job(str(root), str(data), executor="local", workers=1)
    seconds = time.perf_counter() - began
    assert report.num_good == args.chains, report.broken
    site = os.pathsep.join(filter(None, [args.site]))
    peer = [args.peers, "-c", _with_site(_PEER, site), form, str(root), sources]
    ours = [sys.executable, "-c", _OURS, str(data)]
    times: dict[str, list[float]] = {"peer": [], "evofeed": []}
    counts = {}
    for _ in range(args.repeats):
        for who, command in (("peer", peer), ("evofeed", ours)):
            # The peers' Python must not see our packages, nor ours theirs.
            env = os.environ | ({"PYTHONPATH": ""} if who == "peer" else {})
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr[-2000:])
            said = json.loads(done.stdout.splitlines()[-1])
            times[who].append(said["ms"])
            counts[who] = said["counts"]
    assert counts["peer"][1] == counts["evofeed"][1], counts
    return {
        "bytes_of_the_set": _nbytes(root),
        "bytes_of_the_shards": _nbytes(data / "shards"),
        "import_seconds": round(seconds, 2),
        "rows_and_atoms": counts,
        **{f"{who}_cpu_ms_a_sample": _spread(values) for who, values in times.items()},
        "times_faster": round(
            statistics.median(times["peer"]) / statistics.median(times["evofeed"]), 2
        ),
    }


def _with_site(code: str, site: str) -> str:
    return f"import sys\nsys.path.append({site!r})\n{code}" if site else code


def _spread(values: list[float]) -> dict[str, float]:
    low, high = min(values), max(values)
    return {
        "median": round(statistics.median(values), 3),
        "min": round(low, 3),
        "max": round(high, 3),
    }


def _nbytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
