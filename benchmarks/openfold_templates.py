"""Templates found from a bare sequence, by OpenFold's own pipeline and by ours: are they the same?

    python benchmarks/openfold_templates.py --openfold FOLDER [--peers PYTHON] [--site FOLDER ...]
        [--out RESULT.json]

`FOLDER` holds `openfold/`, and `PYTHON`, with the packages in `--site`, can import its
`openfold.data`. Inputs are those of the golden pack: each query is searched by jackhmmer in all
rows of the recorded alignments; then templates by hmmsearch in the chains of the recorded mmCIF
files, and by hhsearch in a database of hh-suite made of them. OpenFold runs `AlignmentRunner.run`
and `DataPipeline.process_fasta`; ours `search_fasta` and `featurize_chain` with
`FeaturizeConfig.openfold()`. Needs hmmer, hhsuite and kalign.
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
from pathlib import Path
from typing import Any

import numpy as np

_ROWS = 200
"""Of each recorded alignment."""
_FIRST = ("P61626", "ofquery", "3l4q_C")
_THEIRS = """
import json, logging, os, shutil, sys, types
given = json.loads(sys.argv[1])
sys.path += given["site"]
import numpy as np
pkg = types.ModuleType("openfold"); pkg.__path__ = [given["openfold"] + "/openfold"]
sys.modules["openfold"] = pkg
from openfold.data import data_pipeline, templates
from openfold.data.tools import hhsearch, hmmsearch
which = shutil.which
by_hmm = given["searcher"] == "hmmsearch"
if by_hmm:
    tool = hmmsearch.Hmmsearch(
        binary_path=which("hmmsearch"), hmmbuild_binary_path=which("hmmbuild"),
        database_path=given["template_db"])
else:
    tool = hhsearch.HHSearch(
        binary_path=which("hhsearch"), databases=[given["template_db"]], n_cpu=1)
make = templates.HmmsearchHitFeaturizer if by_hmm else templates.HhsearchHitFeaturizer
featurizer = make(
    mmcif_dir=given["mmcif_dir"], max_template_date="2021-10-10", max_hits=20,
    kalign_binary_path=which("kalign"))
runner = data_pipeline.AlignmentRunner(
    jackhmmer_binary_path=which("jackhmmer"), uniref90_database_path=given["uniref90"],
    template_searcher=tool, no_cpus=1)
os.makedirs(given["out"])
runner.run(given["fasta"], given["out"])
made = data_pipeline.DataPipeline(featurizer).process_fasta(given["fasta"], given["out"])
kept = {name: value for name, value in made.items() if name.startswith("template_")}
kept = {n: v.astype("S") if v.dtype == object else v for n, v in kept.items()}
np.savez(given["out"] + "/templates.npz", **kept)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--openfold", required=True, help="folder with openfold/")
    parser.add_argument("--peers", default=sys.executable, help="Python for OpenFold")
    parser.add_argument("--site", nargs="*", default=[], help="further folders of packages")
    parser.add_argument("--seconds", type=float, default=3600, help="then no further query")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/openfold_templates.json")
    )
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="evofeed-templates-"))
    try:
        found = compare(folder, args, args.seconds)
    finally:
        shutil.rmtree(folder)
    from evofeed.featurize.search.programs import version

    found |= {
        "command": "python benchmarks/openfold_templates.py --openfold FOLDER",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "programs": [version(name) for name in ("jackhmmer", "hmmsearch", "hhsearch")],
    }
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def compare(folder: Path, args: argparse.Namespace, seconds: float = 3600.0) -> dict[str, Any]:
    from tests.featurize.golden import INPUTS, sources

    queries, rows = {}, {}
    for name, source in sources().items():
        sequence, kin = _rows_of(source)
        if kin and sequence not in queries.values():
            queries[name] = sequence
            rows |= {row: f"{name}_{number}" for number, row in enumerate(kin)}
    mmcif_dir = folder / "mmcif"
    mmcif_dir.mkdir()
    for path in [
        *Path(INPUTS[0]).glob("mmcif/*.cif"),
        *Path(INPUTS[0]).glob("template_mmcif/*.cif*"),
    ]:
        if "_pdbx_audit_revision_history.revision_date" in path.read_text():
            shutil.copy(path, mmcif_dir)  # OpenFold stops at templates without a date
    chains = _chains_of(mmcif_dir)
    (folder / "uniref90.fasta").write_text("".join(f">{n}\n{s}\n" for s, n in rows.items()))
    places = _template_databases(folder, chains)
    cases, began = [], time.time()
    for name, sequence in sorted(
        queries.items(), key=lambda item: (item[0] not in _FIRST, item[0])
    ):
        fasta = folder / f"{name}.fasta"
        fasta.write_text(f">{name}\n{sequence}\n")
        for searcher, template_db in places.items():
            given = {
                "openfold": str(Path(args.openfold).resolve()),
                "site": [str(Path(place).resolve()) for place in args.site],
                "searcher": searcher,
                "template_db": template_db,
                "mmcif_dir": str(mmcif_dir),
                "uniref90": str(folder / "uniref90.fasta"),
                "fasta": str(fasta),
                "out": str(folder / f"of_{name}_{searcher}"),
            }
            cases.append({"query": name, "searcher": searcher, **_case(args.peers, given)})
            print(cases[-1], file=sys.stderr)
        if time.time() - began > seconds:
            break
    return {
        "queries": len({case["query"] for case in cases}),
        "template_chains": len(chains),
        "uniref90_rows": len(rows),
        "cases": cases,
        "equal": sum(case["equal"] for case in cases),
        "templates": sum(case["templates"] for case in cases),
    }


def _case(python: str, given: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-c", _THEIRS, json.dumps(given)],
        env=os.environ | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return {"equal": False, "templates": 0, "why": done.stderr.strip()[-300:]}
    theirs = dict(np.load(f"{given['out']}/templates.npz"))
    ours = _ours(given)
    wrong = [name for name, value in theirs.items() if not _same(ours.get(name), value)]
    names = [name.decode() for name in theirs["template_domain_names"].tolist()]
    return {"equal": not wrong, "templates": len(names), "names": names, "differ": wrong}


def _ours(given: dict[str, Any]) -> dict[str, Any]:
    from evofeed.featurize import FeaturizeConfig, featurize_chain, search_fasta, to_openfold_raw
    from evofeed.featurize.search import Database, SearchConfig

    config = FeaturizeConfig.openfold(max_templates=20)
    (source,) = search_fasta(
        given["fasta"],
        f"{given['out']}_ours",
        search_dbs=[Database("uniref90", given["uniref90"])],
        template_db=Database("pdb", given["template_db"], is_template=True),
        template_mmcif_dir=given["mmcif_dir"],
        config=SearchConfig.openproteinset(),
    )
    return dict(to_openfold_raw(featurize_chain(source, config)))


def _same(ours: Any, theirs: Any) -> bool:
    if ours is None:
        return theirs.size == 0
    ours = np.asarray(ours)
    if theirs.dtype.kind == "S":
        ours = ours.astype("S")
    return bool(ours.shape == theirs.shape and np.array_equal(ours, theirs))


def _rows_of(source: Any) -> tuple[str, list[str]]:
    """A query, and the sequences of the rows of its alignments."""
    from evofeed.featurize import FeaturizeConfig
    from evofeed.featurize.reading import read_bytes
    from evofeed.featurize.search import read_any

    query, kin = "", []
    for role, ref in source.alignment_files(FeaturizeConfig.openfold()):
        if role in ("a3m", "stockholm"):
            first, *rows = read_any(read_bytes(ref))
            query = query or first.letters.replace("-", "").upper()
            kin += [row.letters.replace("-", "").upper() for row in rows[:_ROWS]]
    return query, [row for row in kin if len(row) > 30]


def _chains_of(folder: Path) -> dict[str, str]:
    from evofeed.errors import InputError
    from evofeed.featurize import FeaturizeConfig
    from evofeed.featurize.reading import file_ref, read_bytes
    from evofeed.featurize.structure_files import parse_structure

    found = {}
    for path in sorted(folder.iterdir()):
        try:
            data, config = read_bytes(file_ref(path)), FeaturizeConfig.openfold()
            entry = parse_structure(data, path.name, path=str(path), config=config)
        except InputError:
            continue  # one without protein
        for chain, sequence in entry.sequences.items():
            if len(sequence) > 20:
                found[f"{path.name[:4]}_{chain}"] = sequence
    return found


def _template_databases(folder: Path, chains: dict[str, str]) -> dict[str, str]:
    from tests.featurize.search.family import hh_db

    seqres = folder / "pdb_seqres.txt"
    lines = (f">{n} mol:protein length:{len(s)}  NAME\n{s}\n" for n, s in chains.items())
    seqres.write_text("".join(lines))
    entries = {name: [(f"{name} NAME", sequence)] for name, sequence in chains.items()}
    return {"hmmsearch": str(seqres), "hhsearch": hh_db(folder / "pdb70", entries)}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
