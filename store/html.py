"""A dataset in a notebook: a small table."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import pyarrow.compute as pc

if TYPE_CHECKING:
    from evofeed.store.dataset import Dataset


def describe_html(dataset: Dataset) -> str:
    """Digest, counts and ranges as an HTML table; text from the dataset is escaped."""
    index = dataset.index
    rows = [
        ("dataset", dataset.uri),
        ("snapshot", dataset.digest),
        ("chains", f"{len(dataset):,}"),
        ("shards", f"{len(dataset.manifest.shards):,}"),
        ("bytes", f"{sum(shard.nbytes for shard in dataset.manifest.shards):,}"),
    ]
    names = ("num_res", "num_alignments", "num_templates") if len(dataset) else ()
    for name in names:
        least, most = pc.min(index[name]).as_py(), pc.max(index[name]).as_py()
        rows.append((name, f"{least:,} - {most:,}, mean {pc.mean(index[name]).as_py():,.1f}"))
    cells = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in rows)
    return f"<table>{cells}</table>"
