"""ColabFold's own search and ours on the same databases: are rows and template hits the same?

    python benchmarks/colabfold_search.py --colabfold SEARCH.py [--out RESULT.json]

`SEARCH.py` is ColabFold's `colabfold/mmseqs/search.py`, whose `mmseqs_search_monomer` is called
unchanged, with its filter and without. Where the mmseqs of this machine knows no
`--prefilter-mode`, a wrapper takes that option, which is then its default, off the calls. The
databases are clusters of simulated families with their members and alignments.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

_WRAPPER = """#!/usr/bin/env python3
import os, subprocess, sys
args = sys.argv[1:]
known = subprocess.run(["{mmseqs}", "search", "-h"], capture_output=True, text=True).stdout
if "--prefilter-mode" in args and "--prefilter-mode" not in known:
    at = args.index("--prefilter-mode")
    del args[at : at + 2]
args = [a.strip("'") for a in args]  # ColabFold quotes --k-score as for a shell
os.execv("{mmseqs}", ["mmseqs", *args])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--colabfold", type=Path, required=True)
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/colabfold_search.json")
    )
    args = parser.parse_args()
    from evofeed.featurize.search.programs import version

    with tempfile.TemporaryDirectory(prefix="evofeed-colabfold-") as name:
        found = compare(Path(name), args.colabfold)
    found |= {
        "command": "python benchmarks/colabfold_search.py --colabfold SEARCH.py",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "program": version("mmseqs"),
    }
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def compare(folder: Path, colabfold: Path) -> dict[str, Any]:
    from tests.featurize.search.family import cluster_db, family, mmseqs_db

    families = [family(seed, 40, 80 + 10 * seed) for seed in range(12)]
    records = [
        (f"UniRef100_F{f}N{n} Thing TaxID={n + 1} RepID=X", s)
        for f, kin in enumerate(families)
        for n, s in enumerate(kin[1:])
    ]
    cluster_db(folder / "uniref", records[::2])
    cluster_db(folder / "env", records[1::2])
    mmseqs_db(folder / "pdb", [(f"1a{n:02d}_A", kin[3]) for n, kin in enumerate(families)])
    queries = [kin[0] for kin in families] + ["MKLVAGGG" * 5]
    found = {}
    for mode in ("filter", "nofilter"):
        theirs = _theirs(folder / mode, folder, colabfold, queries, mode == "filter")
        ours = _ours(folder, queries, mode)
        found[mode] = {
            "queries": len(queries),
            "equal": sum(a == b for a, b in zip(ours, theirs, strict=True)),
            "rows": sum(len(rows) for rows, _ in theirs),
            "template_hits": sum(len(hits) for _, hits in theirs),
        }
    return found


def _theirs(
    out: Path, databases: Path, colabfold: Path, queries: list[str], is_filtered: bool
) -> list[tuple[list[str], list[str]]]:
    """Rows and template hits of each query, by ColabFold's function."""
    for name in ("colabfold", "colabfold.input", "colabfold.utils"):
        module = sys.modules.setdefault(name, types.ModuleType(name))
        for wanted in ("get_queries", "msa_to_str", "safe_filename", "AF3Utils"):
            setattr(module, wanted, None)
    spec = importlib.util.spec_from_file_location("colabfold_search", colabfold)
    assert spec and spec.loader
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    import shutil

    out.mkdir()
    wrapper = out / "mmseqs"
    wrapper.write_text(_WRAPPER.format(mmseqs=shutil.which("mmseqs")))
    wrapper.chmod(0o755)
    fasta = out / "q.fa"
    fasta.write_text("".join(f">{n}\n{s}\n" for n, s in enumerate(queries)))
    create = ["createdb", str(fasta), str(out / "qdb"), "--shuffle", "0", "--dbtype", "1"]
    subprocess.run(["mmseqs", *create], check=True, capture_output=True)
    theirs.mmseqs_search_monomer(
        databases,
        out,
        uniref_db=Path("uniref"),
        template_db=Path("pdb"),
        metagenomic_db=Path("env"),
        mmseqs=wrapper,
        use_templates=True,
        filter=is_filtered,
        s=None,
        threads=1,
    )
    return [
        (_rows((out / f"{n}.a3m").read_text()), _hits((out / f"{n}.m8").read_text()))
        for n in range(len(queries))
    ]


def _ours(folder: Path, queries: list[str], mode: Any) -> list[tuple[list[str], list[str]]]:
    from evofeed.featurize import ChainSource, discover
    from evofeed.featurize.formats.reading import read_bytes
    from evofeed.featurize.search import Database, SearchConfig, run_search

    databases = [Database(name, str(folder / name)) for name in ("uniref", "env")]
    databases.append(Database("pdb", str(folder / "pdb"), is_template=True))
    chains = [ChainSource(f"q{n}", sequence=s) for n, s in enumerate(queries)]
    out = str(folder / f"ours_{mode}")
    run_search(chains, out, databases, config=SearchConfig.colabfold(expansion=mode))
    found = {}
    for source in discover(out):
        files = {ref.plain_name: read_bytes(ref).decode() for ref in source.alignments}
        text = files["uniref_hits.a3m"] + files["env_hits.a3m"]
        (hits,) = (text for name, text in files.items() if name.endswith(".m8"))
        found[source.chain_id] = _rows(text), _hits(hits)
    return [found[f"q{n}"] for n in range(len(queries))]


def _rows(a3m: str) -> list[str]:
    """Name, figures and letters of each hit, in order; the queries are named differently."""
    rows = []
    for record in a3m.replace("\0", "").split(">")[1:]:
        head, _, letters = record.partition("\n")
        figures = head.split("\t")[:10]
        if len(figures) == 10:
            rows.append("\t".join([*figures, letters.strip()]))
    return rows


def _hits(m8: str) -> list[str]:
    """Lines of the table, but for the query's name."""
    return [line.partition("\t")[2] for line in m8.replace("\0", "").splitlines()]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
