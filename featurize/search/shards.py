"""A FASTA database in shards, searched with jackhmmer: the rows that the whole one would give.

E-values grow with what is searched. Those of sequences are for the whole database (`-Z`). Those
of domains are for the number of sequences found, which is known when all shards are done: so
each shard gives all its domains, and they are sifted when the shards are joined.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from evofeed.base.errors import InputError
from evofeed.featurize.search import hmmer
from evofeed.featurize.search.aligned_text import first_rows, read_rows, to_a3m
from evofeed.featurize.search.config import Database, SearchConfig

_DOMAIN_E_VALUE: Final = 1e-3
"""jackhmmer's `--incdomE`."""


def search_shard(sequence: str, shard: Database, config: SearchConfig, num_targets: int) -> bytes:
    """All domains that a shard has, as JSON, for `join_shards`.

    Args:
        sequence: the query.
        shard: one of `Database.parts()`.
        config: settings.
        num_targets: sequences in all shards together.
    """
    data, num_hits, domains = hmmer.jackhmmer_shard(
        sequence,
        shard.path,
        num_targets=num_targets,
        threads=config.threads,
        e_value=config.e_value,
        iterations=1,
    )
    query, *rows = read_rows(data)
    kept = [
        (*domains[row.name], to_a3m([query, row]).partition(b"\n>")[2].decode())
        for row in rows
        if row.name in domains
    ]
    return json.dumps({"num_hits": num_hits, "rows": kept}).encode()


def check_shard(data: bytes) -> None:
    """Nothing, if this is what `search_shard` gives.

    Raises:
        InputError: it was cut short.
    """
    try:
        json.loads(data)["rows"]
    except (ValueError, KeyError, TypeError):
        raise InputError("the domains of a shard were cut short") from None


def join_shards(sequence: str, shards: Iterable[bytes], max_rows: int) -> bytes:
    """A3M of a sequence's hits in all shards of a database, the best first.

    Args:
        sequence: the query.
        shards: what `search_shard` gave of each, in order.
        max_rows: rows kept, the query among them.
    """
    found = [json.loads(data) for data in shards]
    num_hits = sum(shard["num_hits"] for shard in found)
    rows = [
        (e_value, -score, record)
        for shard in found
        for e_value, score, domain, record in shard["rows"]
        if domain * num_hits <= _DOMAIN_E_VALUE
    ]
    rows.sort(key=lambda row: row[:2])
    text = "".join([f">query\n{sequence}\n", *(f">{record}" for *_, record in rows)])
    return first_rows(text.encode(), max_rows)
