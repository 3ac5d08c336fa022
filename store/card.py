"""A data card: contents of a snapshot and the inputs left out with reasons, as Markdown or JSON."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from evofeed.base.counts import counted
from evofeed.base.files import write_atomic
from evofeed.store.dataset import Dataset
from evofeed.store.statistics import column_statistics

_MAX_EXAMPLES: Final = 3
_MAX_REASON: Final = 160
_MAX_SETTINGS: Final = 60
_VARIABLE: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\S*/\S*|\b\w*\d[\w.:-]*")
"""Names, paths and numbers, in which two reasons of one kind differ."""
_LABELS: Final = {
    "num_res": "residues",
    "num_alignments": "alignment rows",
    "num_templates": "templates",
    "resolution": "resolution, Å",
    "cluster_size": "size of the sequence cluster",
    "max_aa_fraction": "share of the commonest residue",
}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One kind of reason for which chains, or parts of them, are not in a snapshot.

    Attributes:
        reason: text in which names, paths and numbers are `…`.
        examples: the first cases, `chain: reason` in full.
    """

    reason: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCard:
    """Description and statistics of a snapshot.

    Attributes:
        name, description, license, url: as given to `dataset_card`.
        digest, parent: of the snapshot.
        chains, shards, nbytes: in it; `nbytes` of the shards.
        residues, cells: residues, and residues times alignment rows, of all chains.
        with_structure, predicted: chains with a structure, and with a predicted one.
        columns: of the index: known, unknown, extremes, quantiles, histograms.
        left_out: chains that are not in it, by reason, the commonest first.
        notes: parts left out of chains that are in it, by reason; empty without a job's report.
        settings: how the chains were made.
    """

    name: str
    description: str
    license: str
    url: str
    digest: str
    parent: str | None
    chains: int
    shards: int
    nbytes: int
    residues: int
    cells: int
    with_structure: int
    predicted: int
    columns: dict[str, dict[str, Any]]
    left_out: tuple[LeftOut, ...]
    notes: tuple[LeftOut, ...]
    settings: dict[str, str]

    @property
    def num_left_out(self) -> int:
        """Chains that are not in it."""
        return sum(kind.count for kind in self.left_out)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return dataclasses.asdict(self)

    def write(self, folder: Path) -> list[str]:
        """Write `README.md` and the plots `card.png`; returns their paths."""
        from evofeed.viz import draw_card

        picture = draw_card(self.to_dict(), folder / "card.png")
        write_atomic(folder / "README.md", self.to_markdown(picture.name))
        return [str(folder / file) for file in ("README.md", picture.name)]

    def summary(self) -> str:
        """One sentence."""
        predicted = f", {self.predicted:,} of them predicted" if self.predicted else ""
        return (
            f"{self.chains:,} protein chains of {self.residues:,} residues with alignments of "
            f"{self.cells:,} cells; {self.with_structure:,} with a structure{predicted}."
        )

    def to_markdown(self, picture: str = "") -> str:
        """The card as Markdown, its tables in plain pipes.

        Args:
            picture: address of the plots (`evofeed.viz.draw_card`), if there are any.
        """
        lines = [f"# {self.name}", "", self.description or self.summary(), ""]
        lines += [f"![what is in it, and what is not]({picture})", ""] if picture else []
        lines += _table(("", ""), self._facts())
        lines += ["", "## How its chains are", ""]
        lines += _table(("", "known", "min", "5 %", "median", "95 %", "max"), self._spread())
        for name in ("method", "release_date"):
            column = self.columns.get(name, {})
            groups = column.get("values") or column.get("years")
            if groups:
                lines += ["", f"## {name.replace('_', ' ')}", ""]
                lines += _table(("", "chains"), [(k, f"{v:,}") for k, v in groups.items() if v])
        lines += ["", "## What was left out", ""]
        lines += _reasons(self.left_out, "Nothing: every input is a chain of this snapshot.")
        if self.notes:
            lines += ["", "## What was left out of chains that are in it", ""]
            lines += _reasons(self.notes, "")
        lines += ["", "## How it was made", ""]
        lines += _table(("setting", "value"), [(f"`{k}`", v) for k, v in self.settings.items()])
        return "\n".join(lines) + "\n"

    def _facts(self) -> list[tuple[str, str]]:
        return [
            ("snapshot", f"`{self.digest}`"),
            ("made from", f"`{self.parent}`" if self.parent else "files"),
            ("license", self.license or "not stated"),
            ("address", self.url or "not stated"),
            ("chains", f"{self.chains:,}"),
            ("with a structure", f"{self.with_structure:,}"),
            ("predicted structures", f"{self.predicted:,}"),
            ("residues", f"{self.residues:,}"),
            ("on disk", f"{self.nbytes / 1e6:,.1f} MB in {counted(self.shards, 'shard')}"),
            ("left out", counted(self.num_left_out, "chain")),
        ]

    def _spread(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for name, label in _LABELS.items():
            column = self.columns.get(name, {})
            if column.get("known"):
                low, median, high = (column["quantiles"][q] for q in ("0.05", "0.5", "0.95"))
                values = (column["min"], low, median, high, column["max"])
                rows.append((label, f"{column['known']:,}", *(f"{v:,.6g}" for v in values)))
            else:
                rows.append((label, "0", *["-"] * 5))
        return rows


def dataset_card(
    dataset: Dataset,
    *,
    name: str = "",
    description: str = "",
    license_name: str = "",
    url: str = "",
    notes: Mapping[str, Iterable[str]] | None = None,
) -> DataCard:
    """The card of a snapshot, from its index and manifest; no shard is read.

    Args:
        name: of the data set; the last part of its address if empty.
        description: a sentence of counts if empty.
        notes: parts left out of chains that are in it, by chain, as in a job's report.
    """
    index, manifest = dataset.index, dataset.manifest
    cells = pc.multiply(
        pc.cast(index["num_res"], pa.int64()), pc.cast(index["num_alignments"], pa.int64())
    )
    all_notes = [(chain, note) for chain, texts in (notes or {}).items() for note in texts]
    dropped = [
        (str(item.get("chain_id", "?")), str(item.get("reason", "no reason was kept")))
        for item in manifest.dropped
    ]
    return DataCard(
        name=name or dataset.uri.rstrip("/").rpartition("/")[2] or "dataset",
        description=description,
        license=license_name,
        url=url,
        digest=dataset.digest,
        parent=manifest.parent,
        chains=manifest.num_chains,
        shards=len(manifest.shards),
        nbytes=sum(shard.nbytes for shard in manifest.shards),
        residues=_sum(index["num_res"]),
        cells=_sum(cells),
        with_structure=_sum(index["has_structure"]),
        predicted=_sum(pc.and_(index["has_structure"], index["is_distillation"])),
        columns=column_statistics(index),
        left_out=by_reason(dropped),
        notes=by_reason(all_notes),
        settings=dict(list(_flat(manifest.config))[:_MAX_SETTINGS]),
    )


def by_reason(cases: Iterable[tuple[str, str]]) -> tuple[LeftOut, ...]:
    """Counts of `(chain, reason)` by kind of reason, the commonest first.

    `template 1xyz_A: released after 2018-04-30` and `template 2abc_B: ...` are of one kind.
    """
    counts: dict[str, int] = {}
    examples: dict[str, list[str]] = {}
    for chain, reason in cases:
        kind = re.sub(r"…([ ,]*…)+", "…", _VARIABLE.sub("…", reason))[:_MAX_REASON]
        counts[kind] = counts.get(kind, 0) + 1
        listed = examples.setdefault(kind, [])
        if len(listed) < _MAX_EXAMPLES:
            listed.append(f"{chain}: {reason}"[: 2 * _MAX_REASON])
    order = sorted(counts, key=lambda kind: (-counts[kind], kind))
    return tuple(LeftOut(kind, counts[kind], tuple(examples[kind])) for kind in order)


def _sum(values: Any) -> int:
    return int(pc.sum(values).as_py() or 0)


def _flat(values: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    for key, value in sorted(values.items()):
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", json.dumps(value)


def _reasons(kinds: tuple[LeftOut, ...], nothing: str) -> list[str]:
    if not kinds:
        return [nothing]
    rows = [(f"{kind.count:,}", kind.reason, kind.examples[0]) for kind in kinds]
    return _table(("how many", "why", "for example"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines]


def _cell(text: str) -> str:
    """Text with Markdown's and HTML's marks escaped: it cannot end a cell or begin a tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
