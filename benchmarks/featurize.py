"""Text to arrays on one core, beside the plain Python way of doing the same.

    python benchmarks/featurize.py INPUTS --out benchmarks/results/featurize.json
    python benchmarks/featurize.py INPUTS --openfold /path/to/openfold/checkout

INPUTS is a data set root (alignments/, mmcif/, template_mmcif/ …). Times are CPU
seconds of this process, median of the repeats, both ways in the same run. The
plain way is `tests/featurize/msa_reference.py` (a character at a time) and
Biopython's mmCIF parser; with --openfold its own alignment parsers too.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from recording import about, save

from evofeed.featurize import (
    ChainSource,
    FeaturizeConfig,
    discover,
    featurize_chain,
    to_openfold_raw,
)
from evofeed.featurize.formats.a3m import parse_a3m
from evofeed.featurize.formats.msa import merge
from evofeed.featurize.formats.reading import read_bytes
from evofeed.featurize.formats.stockholm import parse_stockholm
from evofeed.featurize.records.template_library import TemplateLibrary
from evofeed.featurize.structures.mmcif import parse_mmcif
from evofeed.protein.residues import MSA_LETTER_TO_RESTYPE

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.featurize.msa_reference import read_a3m, read_stockholm, unique_rows

OPENFOLD = FeaturizeConfig.openfold()
Figures = dict[str, Any]


def cpu_ms(function: Callable[[], object], repeats: int) -> Figures:
    function()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(1e3 * (time.process_time() - start))
    low, _, high = statistics.quantiles(times, n=4)
    return {"median_ms": statistics.median(times), "iqr_ms": high - low, "best_ms": min(times)}


def alignments(source: ChainSource) -> list[tuple[str, bytes]]:
    roles = ("a3m", "stockholm")
    return [(role, read_bytes(f)) for role, f in source.alignment_files(OPENFOLD) if role in roles]


def fast_msa(files: list[tuple[str, bytes]]) -> object:
    return merge([(parse_a3m if r == "a3m" else parse_stockholm)(data) for r, data in files])


def plain_msa(files: list[tuple[str, bytes]]) -> object:
    """The same arrays, a character at a time."""
    rows = unique_rows(
        [(read_a3m if r == "a3m" else read_stockholm)(data.decode()) for r, data in files]
    )
    table = {chr(i): int(code) for i, code in enumerate(MSA_LETTER_TO_RESTYPE)}
    msa = np.array([[table[letter] for letter in row[0]] for row in rows], np.uint8)
    deletions = np.array([row[1] for row in rows], np.int32)
    return msa, deletions, (msa[..., None] == np.arange(22)).sum(0)


def openfold_msa(parsers: Any, files: list[tuple[str, bytes]]) -> object:
    parse = {"a3m": parsers.parse_a3m, "stockholm": parsers.parse_stockholm}
    return [parse[role](data.decode()) for role, data in files]


def biopython(data: bytes) -> object:
    from Bio.PDB.MMCIFParser import MMCIFParser

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parser: Any = MMCIFParser
        return parser(QUIET=True).get_structure("", io.StringIO(data.decode()))


def whole_structure(data: bytes) -> None:
    structure = parse_mmcif(data, file_id="x", config=OPENFOLD)
    for name in structure.sequences:
        structure.chain(name)


def measure_alignments(sources: list[ChainSource], repeats: int, parsers: Any) -> Figures:
    results = {}
    for source in sources:
        files = alignments(source)
        if not files:
            continue
        characters = sum(len(data) for _, data in files)
        fast = cpu_ms(lambda files=files: fast_msa(files), repeats)
        plain = cpu_ms(lambda files=files: plain_msa(files), 5)
        row = {
            "characters": characters,
            "ours": fast,
            "plain_python": plain,
            "ours_ns_per_character": 1e6 * fast["median_ms"] / characters,
            "plain_ns_per_character": 1e6 * plain["median_ms"] / characters,
            "times_plain": plain["median_ms"] / fast["median_ms"],
        }
        if parsers is not None:
            theirs = cpu_ms(lambda files=files: openfold_msa(parsers, files), 5)
            row["openfold_parse_only"] = theirs
            row["openfold_parse_only_ns_per_character"] = 1e6 * theirs["median_ms"] / characters
        results[source.chain_id] = row
    return results


def measure_structures(files: list[Path], repeats: int) -> Figures:
    results = {}
    for path in files:
        data = path.read_bytes()
        try:
            fast = cpu_ms(lambda data=data: whole_structure(data), repeats)
        except Exception as error:
            results[path.name] = {"refused": str(error)}
            continue
        plain = cpu_ms(lambda data=data: biopython(data), 5)
        results[path.name] = {
            "bytes": len(data),
            "ours": fast,
            "biopython": plain,
            "times_biopython": plain["median_ms"] / fast["median_ms"],
        }
    return results


def measure_builds(sources: list[ChainSource], repeats: int) -> Figures:
    """Everything from files to OpenFold's raw dict, templates cold; and to our record."""
    results = {}
    for source in sources:

        def build(source: ChainSource = source, most: int = 4) -> Any:
            config = OPENFOLD.replace(max_templates=most)
            folder = source.template_mmcif_dir
            library = TemplateLibrary(folder, config) if folder else None
            return featurize_chain(source, config, library=library)

        results[source.chain_id] = {
            "record": cpu_ms(build, repeats),
            "raw": cpu_ms(lambda build=build: to_openfold_raw(build()), repeats),
            "raw_20_templates": cpu_ms(
                lambda build=build: to_openfold_raw(build(most=20)), repeats
            ),
            "templates": build(most=20).num_templates,
        }
    return results


MEMORY = """
import re, sys
from pathlib import Path
from evofeed.featurize import *
def status(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
featurize_chain(ChainSource("warm", alignment_dir=sys.argv[2]))
Path("/proc/self/clear_refs").write_text("5")  # forget the peak of imports and compilation
before = status("VmRSS")
featurize_chain(ChainSource("deep", alignment_dir=sys.argv[1]))
print(status("VmHWM") - before)
"""


def measure_memory(sources: list[ChainSource], copies: int = 16) -> Figures:
    """Peak of a fresh process over an alignment deep enough to outweigh everything else."""
    results = {}
    for role in ("a3m", "stockholm"):
        files = [(data, s) for s in sources for r, data in alignments(s) if r == role]
        data, source = max(files, key=lambda file: len(file[0]))
        text = deepened(data, role, copies)
        small = min((s for s in sources if s.alignment_dir), key=lambda s: s.nbytes())
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / f"x.{'a3m' if role == 'a3m' else 'sto'}").write_bytes(text)
            command = [sys.executable, "-c", MEMORY, folder, str(small.alignment_dir)]
            grown = int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
        results[role] = {
            "made_from": source.chain_id,
            "input_bytes": len(text),
            "peak_growth_bytes": grown,
            "times_input": grown / len(text),
        }
    return results


def deepened(data: bytes, role: str, copies: int) -> bytes:
    """The alignment and copies of it whose rows all differ: a letter turned into another."""
    letters = b"ACDEFGHIKLMNPQRSTVWY"
    parts = [data if role == "a3m" else data.replace(b"//", b"")]
    for copy in range(1, copies):
        turned = bytes.maketrans(letters, letters[copy:] + letters[:copy])
        lines = []
        for line in data.splitlines():
            if role == "a3m":
                lines.append(line if line.startswith(b">") else line.translate(turned))
            elif line and not line.startswith((b"#", b"//")):
                name, _, row = line.partition(b" ")
                lines.append(name + b"_%d " % copy + row.strip().translate(turned))
        parts.append(b"\n".join(lines))
    return b"\n".join(parts) + b"\n"


def load_parsers(checkout: str | None) -> Any:
    if checkout is None:
        return None
    path = Path(checkout) / "openfold" / "data" / "parsers.py"
    spec = importlib.util.spec_from_file_location("openfold_parsers", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("inputs", type=Path)
    options.add_argument("--repeats", type=int, default=9)
    options.add_argument("--openfold", help="a checkout of OpenFold, to measure beside")
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    sources = discover(given.inputs)
    results = {
        **about("numpy", "numba", "gemmi", "biopython"),
        "repeats": given.repeats,
        "alignments": measure_alignments(sources, given.repeats, load_parsers(given.openfold)),
        "structures": measure_structures(sorted(given.inputs.glob("*mmcif/*.cif")), given.repeats),
        "builds": measure_builds(sources, given.repeats),
        "memory": measure_memory(sources),
    }
    save(given.out, results)


if __name__ == "__main__":
    main()
