"""Damaged inputs of other programs: a typed error or a valid record, never another exception."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.featurize.mutations import mutate
from tests.featurize.test_readers import COMPLEX, MSA, A, B, af3, write

from evofeed.base.errors import EvofeedError, InputError
from evofeed.featurize import ChainSource, discover, featurize_chain
from evofeed.featurize.inputs.clusters import cluster_sizes

CASES = 50
BOLTZ = f"""version: 1
sequences:
  - protein: {{id: [A, B], sequence: {A}, msa: empty}}
  - protein: {{id: C, sequence: {B}}}
  - ligand: {{id: D, smiles: 'CC(=O)N'}}
"""
CHAINS = [ChainSource("1abc_A"), ChainSource("2abc_B")]


def text_of(folder: Path, name: str) -> bytes:
    """A sound file of each kind."""
    if name == "x.json":
        return (af3(folder / "af3") / "job.json").read_bytes()
    if name == "x.aligned.pqt":
        pq.write_table(pa.table({"sequence": [A, "ACwwDE-"]}), folder / "sound.pqt")
        return (folder / "sound.pqt").read_bytes()
    texts = {
        "x.a3m": COMPLEX,
        "x.yaml": BOLTZ,
        "x.csv": f"key,sequence\n0,{A}\n-1,ACwwDE-\n",
        "x.fasta": f">A|protein|x.a3m\n{A}\n>L|smiles\nCC(=O)N\n>protein|name=x\n{B}\n>y\nACGU\n",
        "x_a3m.ffindex": "a\t0\t20\nb\t20\t20\n",
        "clusters": "1abc_A\t1abc_A\n1abc_A\t2abc_B\n",
        "msas/chain_id_map.json": json.dumps({"A": {"sequence": A, "description": ""}}),
    }
    return texts[name].encode()


def featurized(path: Path) -> None:
    for source in discover(path, problems=[]):
        try:
            featurize_chain(source)
        except EvofeedError as error:
            assert error.message and error.item


def clustered(path: Path) -> None:
    assert set(cluster_sizes(str(path), CHAINS)) == {"1abc_A", "2abc_B"}


READERS: dict[str, Callable[[Path], None]] = {
    "clusters": clustered,
    **dict.fromkeys(("x.a3m", "x.json", "x.yaml", "x.csv", "x.aligned.pqt"), featurized),
    **dict.fromkeys(("x.fasta", "x_a3m.ffindex"), featurized),
    "msas/chain_id_map.json": lambda path: featurized(path.parents[1]),
}


@pytest.mark.parametrize("name", list(READERS))
def test_a_damaged_file_is_a_typed_error_or_a_record(name: str, tmp_path: Path) -> None:
    sound = text_of(tmp_path, name)
    folder, others = tmp_path / "in", {"msas/A/x.a3m": MSA} if "/" in name else {}
    write(folder, others or {"x_a3m.ffdata": MSA * 2})
    READERS[name](write_bytes(folder / name, sound))
    for case in range(CASES):
        try:
            READERS[name](write_bytes(folder / name, mutate([sound], f"{name}:{case}")))
        except InputError as error:
            assert error.message and str(folder) in str(error.path), f"{name}:{case}"


def write_bytes(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
