"""Thousands of damaged files: a typed error or a valid result, quickly, in bounded memory.

A case is `<format>:<number>` and depends on nothing else. Those that ever failed
are kept in `fuzz_seeds.txt` and run first.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import resource
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import zstandard
from tests.featurize.golden import INPUTS
from tests.featurize.mutations import mutate
from tests.featurize.test_mmcif import small
from tests.featurize.test_templates import HHR

from evofeed.base.errors import EvofeedError
from evofeed.featurize import FileRef, InputCaps
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.a3m import parse_a3m
from evofeed.featurize.formats.alignment_db import read_index
from evofeed.featurize.formats.fasta import parse_fasta
from evofeed.featurize.formats.hits import parse_hhr, parse_hmmsearch
from evofeed.featurize.formats.msa import Msa, merge
from evofeed.featurize.formats.reading import read_bytes
from evofeed.featurize.formats.stockholm import parse_stockholm
from evofeed.featurize.records.template_match import match_hit
from evofeed.featurize.structures.mmcif import parse_mmcif
from evofeed.featurize.structures.pdb import parse_pdb
from evofeed.featurize.structures.structure import Structure

PDB = b"ATOM      1  CA  ALA A   1      11.104   6.134  -6.504  1.00 90.00           C\n"
CASES = 500
DEADLINE = 10.0
MEMORY = 1 << 30
KEPT = Path(__file__).with_name("fuzz_seeds.txt")
QUERY = "MKALIVLGLVLLSVTVQGKVFERCELARTLKRLGMDGYRG"
CONFIG = FeaturizeConfig()
STRICT = FeaturizeConfig.openfold()


def check_msa(msa: Msa) -> None:
    merged = merge([msa, msa])
    rows = merged["msa"]
    assert rows.max() <= 21 and 0 < len(rows) <= len(msa.letters)
    assert (merged["hhblits_profile_counts"].sum(-1) == len(rows)).all()
    assert (msa.deletion_count > 0).all() and len(merged["msa_species"]) == len(rows)


def hhr(data: bytes) -> None:
    for hit in parse_hhr(data, path="x"):
        assert len(hit.indices_hit) <= len(hit.hit_sequence)
        try_match(hit.query.replace("-", "") or QUERY, hit)


def hmmsearch(data: bytes) -> None:
    for hit in parse_hmmsearch(data, QUERY, path="x"):
        try_match(QUERY, hit)


def try_match(query: str, hit) -> None:  # type: ignore[no-untyped-def]
    sequences = {"A": QUERY * 2, "B": "AXC"}
    structure = Structure("x", "", "", 0.0, sequences, lambda _: None)  # type: ignore[arg-type, return-value]
    try:
        found = match_hit(hit, "A", query, structure, CONFIG)
    except EvofeedError:
        return
    assert ((found.query >= 0) & (found.query < len(query))).all()
    assert (found.template >= 0).all() and len(found.letters) == len(found.query)


def mmcif(data: bytes) -> None:
    for config in (CONFIG, STRICT):
        with contextlib.suppress(EvofeedError):
            check_structure(parse_mmcif(data, file_id="x", path="x", config=config))


def check_structure(structure: Structure) -> None:
    for name, sequence in structure.sequences.items():
        chain = structure.chain(name)
        assert chain.positions.shape == (len(sequence), 37, 3)
        assert np.isfinite(chain.positions).all() and chain.mask.max(initial=0) <= 1


def fasta(data: bytes) -> None:
    for record in parse_fasta(data, path="x"):
        assert record.sequence.isalpha() and record.sequence.isupper()


def index(data: bytes) -> None:
    path = Path(_SCRATCH.name) / "a.index"
    path.write_bytes(data)
    for entry in read_index(str(path)).values():
        assert Path(entry.db).parent == path.parent


def packed(data: bytes) -> None:
    name = ("x.gz", "x.zst")[data[:1] != b"\x1f"]
    path = Path(_SCRATCH.name) / name
    path.write_bytes(data)
    assert len(read_bytes(FileRef(name, str(path)), InputCaps())) <= 1 << 26


_SCRATCH = tempfile.TemporaryDirectory(prefix="evofeed-fuzz-")  # gone when the process ends


FORMATS: dict[str, Callable[[bytes], None]] = {
    "a3m": lambda data: check_msa(parse_a3m(data, path="x")),
    "stockholm": lambda data: check_msa(parse_stockholm(data, path="x")),
    "pdb": lambda d: check_structure(parse_pdb(d, file_id="x", path="x", is_distillation=True)),
    **{f.__name__: f for f in (hhr, hmmsearch, mmcif, fasta, index, packed)},
}


@cache
def files(kind: str) -> list[bytes]:
    """Real files, cut to sizes that allow thousands of cases, and small made-up ones."""
    made: dict[str, list[bytes]] = {
        "a3m": [b">q\nACDEF\n>tr|A0A146SKV9|A0A146SKV9_FUNHE x\nA-aaDEF\n>y\nAC.D-F\n"],
        "stockholm": [b"# STOCKHOLM 1.0\nq AC-D\nx ACAD\n\nq EF\nx -F\n//\n"],
        "hhr": [HHR],
        "hmmsearch": [b"#=GS 1abc_A/3-6 DE [subseq] mol:protein length:9 X\n1abc_A/3-6  MKaL-VL\n"],
        "mmcif": [small([("A", "0.4", "1.0"), ("B", "0.6", "-2.5")]), small([(".", "1", "0.0")])],
        "pdb": [PDB],
        "fasta": [b">one first\nACDEF\n>two\nacd*\n"],
        "index": [json.dumps({"a_A": {"db": "a.db", "files": [["x.a3m", 0, 5]]}}).encode()],
        "packed": [gzip.compress(b"ACD" * 99) * 2, zstandard.compress(b"ACD" * 99), b"ACD"],
    }  # fmt: skip
    patterns = {
        "a3m": ("*.a3m", 4000),
        "stockholm": ("*_hits.sto", 6000),
        "hhr": ("*.hhr", 9000),
        "hmmsearch": ("hmm_output.sto", 6000),
        "mmcif": ("*.cif", 120_000),
        "pdb": ("*.pdb", 60_000),
        "fasta": ("*.fasta", 4000),
    }
    real: list[bytes] = []
    if kind in patterns:
        pattern, size = patterns[kind]
        for path in sorted(p for root in INPUTS for p in root.rglob(pattern)):
            data = path.read_bytes()
            if kind != "mmcif":
                start = data.find(b"\nATOM ") + 1 if kind == "pdb" else 0
                real.append(data[start : start + (8000 if kind == "pdb" else size)])
            elif len(data) <= size:
                real.append(data)
    return made[kind] * max(1, len(real)) + real


@cache
def compile_loops(kind: str) -> None:
    """What the first whole file takes, so that no damaged one is charged for it."""
    for data in (files(kind)[0], files(kind)[-1]):
        with contextlib.suppress(EvofeedError):
            FORMATS[kind](data)


def run(kind: str, number: int) -> None:
    compile_loops(kind)
    data = mutate(files(kind), f"{kind}:{number}")
    start = time.process_time()
    try:
        FORMATS[kind](data)
    except EvofeedError as error:
        assert str(error)
    except Exception as error:
        pytest.fail(f"add {kind}:{number} to fuzz_seeds.txt: {error!r}")
    took = time.process_time() - start
    assert took < DEADLINE, f"add {kind}:{number} to fuzz_seeds.txt: {took:.1f} s"


@pytest.mark.parametrize("case", KEPT.read_text().split())
def test_inputs_that_once_failed_raise_typed_errors(case: str) -> None:
    kind, _, number = case.partition(":")
    run(kind, int(number))


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_files_give_typed_errors_only(kind: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(CASES):
        run(kind, number)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < MEMORY
