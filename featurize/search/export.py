"""Results of a search as other programs read them: one search serves all."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from evofeed.errors import InputError
from evofeed.featurize.a3m import parse_a3m
from evofeed.featurize.discovery import discover
from evofeed.featurize.msa import Msa, single_row
from evofeed.featurize.reading import read_bytes
from evofeed.featurize.search.aligned_text import read_any, to_a3m
from evofeed.featurize.search.pairing import records_of
from evofeed.featurize.sources import ChainSource
from evofeed.featurize.species import organism_of
from evofeed.featurize.stockholm import parse_stockholm
from evofeed.files import write_atomic

_ACCESSION: Final = re.compile(r"(?:UniRef[0-9]+_|(?:tr|sp)\|)?([A-Za-z0-9]+)")


def export_search(out_dir: str, to_dir: str, form: str) -> int:
    """Write the results of a search in the layout of another program.

    Args:
        out_dir: what `evofeed search` wrote.
        to_dir: where it goes; made if it is not there.
        form: one of `FORMATS`.

    Returns:
        How many chains were written.

    Raises:
        InputError: no results there.
    """
    write = FORMATS[form]
    if not (Path(out_dir) / "search.index").is_file():
        raise InputError("no search.index in it: give the folder of a search", path=out_dir)
    sources = discover(out_dir)
    to = Path(to_dir)
    to.mkdir(parents=True, exist_ok=True)
    write(sources, to)
    return len(sources)


def whole_alignment(source: ChainSource) -> bytes:
    """The hits of all databases of a chain below its sequence, as A3M with whole headers."""
    parts = [f">{source.chain_id}\n{source.sequence}\n".encode()]
    for role, ref in source.alignment_files():
        if role in ("a3m", "stockholm"):
            data = read_bytes(ref)
            a3m = data if role == "a3m" else to_a3m(read_any(data))
            hits = a3m.partition(b"\n>")[2]
            parts.append(b">" + hits if hits else b"")
    return b"".join(parts)


def _openfold(sources: list[ChainSource], to: Path) -> None:
    """`alignments/<chain>/*`, as OpenFold's own scripts write them, and `fasta/`."""
    (to / "fasta").mkdir(exist_ok=True)
    for source in sources:
        folder = to / "alignments" / source.chain_id
        folder.mkdir(parents=True, exist_ok=True)
        for _, ref in source.alignment_files():
            name = ref.plain_name.replace("hmmsearch_output", "hmm_output")
            write_atomic(folder / name, read_bytes(ref))
        text = f">{source.description or source.chain_id}\n{source.sequence}\n"
        write_atomic(to / "fasta" / f"{source.chain_id}.fasta", text.encode())


def _af3(sources: list[ChainSource], to: Path) -> None:
    """A job of AlphaFold 3 a chain, its alignment in it; AF3 itself then searches nothing."""
    for source in sources:
        protein = {
            "id": "A",
            "sequence": source.sequence,
            "unpairedMsa": whole_alignment(source).decode(),
            "pairedMsa": "",
            "templates": [],
        }
        job = {
            "name": source.chain_id,
            "modelSeeds": [1],
            "sequences": [{"protein": protein}],
            "dialect": "alphafold3",
            "version": 2,
        }
        write_atomic(to / f"{source.chain_id}.json", json.dumps(job, indent=1).encode())


def _boltz(sources: list[ChainSource], to: Path) -> None:
    """`<chain>.yaml` and its alignment as `<chain>.csv`: taxon id (-1 for none) and row."""
    for source in sources:
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["key", "sequence"])
        for number, (header, letters) in enumerate(records_of(whole_alignment(source))):
            organism = organism_of(header) if number else ""
            writer.writerow([organism if organism.isdecimal() else "-1", letters])
        write_atomic(to / f"{source.chain_id}.csv", table.getvalue().encode())
        job = (
            "version: 1\nsequences:\n  - protein:\n      id: A\n"
            f"      sequence: {source.sequence}\n      msa: ./{source.chain_id}.csv\n"
        )
        write_atomic(to / f"{source.chain_id}.yaml", job.encode())


def _protenix(sources: list[ChainSource], to: Path) -> None:
    """`<number>/pairing.a3m` and `non_pairing.a3m`, and the index of their sequences."""
    numbers: dict[str, int] = {}
    for source in sources:
        if source.sequence in numbers:
            continue
        number = numbers.setdefault(source.sequence, len(numbers))
        folder = to / "msa" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        whole = whole_alignment(source)
        write_atomic(folder / "non_pairing.a3m", whole)
        write_atomic(folder / "pairing.a3m", b"".join(_with_taxa(whole)))
    write_atomic(to / "seq_to_pdb_index.json", json.dumps(numbers).encode())


def _with_taxa(a3m: bytes) -> Iterator[bytes]:
    """The query, and the rows whose taxon is known, with it in their names."""
    query, *hits = records_of(a3m)
    yield f">query\n{query[1]}\n".encode()
    for header, letters in hits:
        taxon, name = organism_of(header), _ACCESSION.match(header)
        if taxon.isdecimal() and name:
            yield f">UniRef100_{name[1]}_{taxon}/\n{letters}\n".encode()


def _openfold3(sources: list[ChainSource], to: Path) -> None:
    """`preparsed_alignments/<chain>.npz`, `query.json` that names them, and `runner.yml`.

    In an archive there is a table a database: letters, deletions and names of its rows, as
    OpenFold3's own `preparse_alignments_of3.py` makes them; in `runner.yml` their order.
    """
    folder = to / "preparsed_alignments"
    folder.mkdir(exist_ok=True)
    queries: dict[str, Any] = {}
    order: dict[str, None] = {}
    for source in sources:
        tables = {}
        for role, ref in source.alignment_files():
            if role in ("a3m", "stockholm"):
                parse = parse_a3m if role == "a3m" else parse_stockholm
                name = ref.plain_name.rpartition(".")[0].removeprefix("search_")
                tables[name] = _table_of(parse(read_bytes(ref)))
        if not tables:
            tables["dummy"] = _table_of(single_row(source.sequence))
        order |= dict.fromkeys(tables)
        out = io.BytesIO()
        np.savez_compressed(out, allow_pickle=True, **tables)
        path = folder / f"{source.chain_id}.npz"
        write_atomic(path, out.getvalue())
        chain = {
            "molecule_type": "protein",
            "chain_ids": ["A"],
            "sequence": source.sequence,
            "main_msa_file_paths": [str(path.absolute())],
        }
        queries[source.chain_id] = {"chains": [chain]}
    write_atomic(to / "query.json", json.dumps({"queries": queries}, indent=1).encode())
    names = "".join(f"      - {name}\n" for name in order)
    counts = "".join(f"      {name}: 10000000\n" for name in order)
    pairing = [name for name in order if name.startswith("uniprot")]
    text = (
        f"dataset_config_kwargs:\n  msa:\n    max_seq_counts:\n{counts}"
        f"    msas_to_pair: {json.dumps(pairing)}\n    aln_order:\n{names}"
    )
    write_atomic(to / "runner.yml", text.encode())


def _table_of(msa: Msa) -> Any:
    """An alignment as OpenFold3 keeps it, in an array of one object."""
    letters = msa.letters.astype(np.uint32).view("<U1")
    names = np.array(msa.descriptions() if len(msa.text) else ["query"])
    whole = {"msa": letters, "deletion_matrix": msa.deletion_matrix(), "metadata": names}
    return np.array(whole, object)


FORMATS: Final[dict[str, Callable[[list[ChainSource], Path], None]]] = {
    "openfold": _openfold,
    "af3": _af3,
    "boltz": _boltz,
    "openfold3": _openfold3,
    "protenix": _protenix,
}
"""Layouts by name."""
