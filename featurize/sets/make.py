"""A training set of a folder of structures, step by step.

Every step is a command of its own, and what it has done it does not do again: run it again after
whatever ended it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evofeed.base.configs import check_numbers
from evofeed.base.counts import counted
from evofeed.base.errors import InputError, JobError
from evofeed.base.files import write_atomic
from evofeed.featurize.assembly_commands import add_complexes
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.entries.input import EntriesInput
from evofeed.featurize.entries.job import prepare_entries
from evofeed.featurize.formats.reading import plain
from evofeed.featurize.inputs.discovery import discover
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.featurize.job.options import JobOptions
from evofeed.featurize.job.run import run_job
from evofeed.featurize.search.cluster import cluster_sequences
from evofeed.featurize.search.config import Database, SearchConfig, SearchOptions
from evofeed.featurize.search.job import run_search
from evofeed.featurize.structures.listing import list_chains
from evofeed.featurize.structures.structure_files import entry_of, structure_files
from evofeed.store import Dataset, Selection, dataset_card, split_chains
from evofeed.store.inner import Clusters

IDENTITY: Final = 0.4
"""Of the clusters, if a split names no other: AF2's, for sampling weights."""
SHARE: Final = 0.05
"""Of the chains, for `valid`, if a split names neither a share nor a date."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How a set is divided into `train` and `valid`."""

    date: str = ""
    """ISO: `valid` has what was released from that day on."""
    identity: float = 0.0
    """No chain of one part is more alike to one of the other; 0 divides by date alone."""
    share: float = 0.0
    """Most of the chains that `valid` gets."""

    def __post_init__(self) -> None:
        Selection(released_from=self.date)  # refuses what is no date
        check_numbers(self, "identity", "share", least=0, below=1)

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Split:
        """Of `date:2021-09-30`, `identity:0.4`, `share:0.05`.

        Raises:
            ValueError: one is none of these.
        """
        found: dict[str, Any] = {}
        for text in texts:
            name, _, value = text.partition(":")
            wanted = "date:ISO-DATE, identity:0.4 or share:0.05"
            if name not in ("date", "identity", "share") or not value:
                raise ValueError(f"no split {text!r}: {wanted}")
            try:
                found[name] = value if name == "date" else float(value)
            except ValueError:
                raise ValueError(f"no number in {text!r}: {wanted}") from None
        return cls(**found)


def make_set(
    structures: str,
    out: str | Path,
    databases: Sequence[Database],
    config: SearchConfig,
    *,
    templates: str = "",
    components: str = "",
    split: Split | None = None,
    allow_similar: bool = False,
    search: SearchOptions | None = None,
    job: JobOptions | None = None,
    say: Say = print,
) -> dict[str, Any]:
    """Sequences, alignments, clusters, chains, complexes, entries, parts and a card.

    Args:
        out: folder; `data/` in it is the dataset.
        templates: folder with the structures of template hits; `structures` if empty.
        components: the wwPDB's components.cif: then entries are prepared too.

    Returns:
        What came of it: counts, the parts, what was left out and why.

    Raises:
        InputError: no structure with a protein chain, or a database or a program is missing.
        JobError: too many chains are broken; what is done is kept.
        TooSimilar: the parts are more alike than the split allows.
    """
    if components and not Path(components).is_file():  # told before the search, not after it
        raise InputError("no such file", path=components)
    root, job = Path(out), job or JobOptions()
    uri, fasta, table = (str(root / name) for name in ("data", "chains.fasta", "clusters.tsv"))
    chains, left_out = read_chains(structures)
    root.mkdir(parents=True, exist_ok=True)
    write_atomic(Path(fasta), "".join(f">{c.chain_id}\n{c.sequence}\n" for c in chains))
    say(
        f"{counted(len(chains), 'protein chain')} of {structures}, "
        f"{counted(len(left_out), 'file')} left out"
    )
    found = run_search(chains, str(root / "search"), databases, config=config, options=search)
    left_out |= {one["chain_id"]: [one["message"]] for one in found.broken}
    say(f"{found.searched} searches, {found.cache_hits} results known, {found.num_broken} broken")
    identity = (split.identity if split else 0) or IDENTITY
    clusters = _clusters(fasta, table, identity, search.threads if search else 1)
    say(f"{counted(clusters, 'cluster')} at {identity:.0%} identity")
    finder = {"structure_dir": structures, "template_mmcif_dir": templates or structures}
    report = run_job(str(root / "search"), uri, options=job, discover_args=finder, clusters=table)
    if not report.snapshot:
        raise JobError(report.message, path=str(report.path))
    say(f"{counted(report.num_good, 'chain')} published, {report.num_broken} broken")
    made: dict[str, Any] = {"chains": report.num_good, "clusters": clusters}
    made["complexes"] = _complexes(root, uri, structures)
    if components:
        made["entries"] = _entries(root, uri, structures, components, table, job)
    complexes = counted(made["complexes"], "complex", "complexes")
    say(f"{complexes}, {counted(made.get('entries', 0), 'entry', 'entries')}")
    parts = _parts(uri, table, split, allow_similar) if split else {"main": len(Dataset.open(uri))}
    notes = {**report.notes, **{one["chain_id"]: [one["message"]] for one in report.broken}}
    made |= {"parts": parts, "left_out": left_out, "cards": []}
    for name in parts:
        card = dataset_card(Dataset.open(uri, name), name=name, notes=notes | left_out)
        made["cards"].append(card.write(root / "card" / name)[0])
    write_atomic(root / "set.json", json.dumps(made, indent=1))
    return made


def read_chains(structures: str) -> tuple[list[ChainSource], dict[str, list[str]]]:
    """Sequences of the protein chains of a folder, and why files have none.

    Raises:
        InputError: no file has one.
    """
    files = structure_files(Path(structures), deep=True)
    chains: dict[str, ChainSource] = {}
    left_out: dict[str, list[str]] = {}
    for path, listed in zip(files, list_chains(files), strict=True):
        entry = entry_of(plain(path.name))
        if isinstance(listed, InputError):
            left_out[entry] = [listed.message]
            continue
        for chain, sequence in listed.items():
            name = f"{entry}_{chain}" if chain else entry
            if name in chains:
                left_out[name] = [f"there twice, in {path} too: the first counts"]
            else:
                chains[name] = ChainSource(name, sequence=sequence)
    if not chains:
        first = next(iter(left_out.items()), ("", ["there is no structure file in it"]))
        raise InputError(f"no protein chain: {first[1][0]}", path=structures, item=first[0] or None)
    return [chains[name] for name in sorted(chains)], left_out


def _clusters(fasta: str, table: str, identity: float, threads: int) -> int:
    """Clusters of the sequences, unless the table is of these already; how many."""
    key = hashlib.sha256(f"{identity} ".encode() + Path(fasta).read_bytes()).hexdigest()
    stamp = Path(f"{table}.key")
    if not (stamp.exists() and Path(table).exists() and stamp.read_text() == key):
        cluster_sequences(fasta, table, identity=identity, threads=threads, problems=[])
        write_atomic(stamp, key)
    return len({line.split("\t")[0] for line in Path(table).read_text().splitlines()})


def _complexes(root: Path, uri: str, structures: str) -> int:
    try:
        config = FeaturizeConfig()
        found = add_complexes(str(root / "search"), uri, config, "main", structures, quiet=True)
    except InputError:  # every entry has one chain
        return 0
    return int(found["assemblies"])


def _entries(
    root: Path, uri: str, structures: str, components: str, table: str, job: JobOptions
) -> int:
    """Entries with the alignments that the search found; their job knows polymers by their
    sequence, so clusters are given it by sequence too."""
    members = str(root / "entry_clusters.tsv")
    chains = {chain.chain_id: chain for chain in discover(str(root / "search"))}
    rows = [line.split("\t") for line in Path(table).read_text().splitlines()]
    groups: dict[str, dict[str, None]] = {}
    for first, name in rows:
        if name in chains:
            groups.setdefault(first, {first: None})[chains[name].sequence] = None
    write_atomic(Path(members), "".join(f"{' '.join(group)}\n" for group in groups.values()))
    report = prepare_entries(
        EntriesInput(
            structures=structures,
            components=components,
            alignments=str(root / "search"),
            clusters=members,
        ),
        uri,
        options=job,
    )
    if not report.snapshot:
        raise JobError(report.message, path=str(report.path))
    return len(Dataset.open(uri).entries)


def _parts(uri: str, table: str, split: Split, allow_similar: bool) -> dict[str, int]:
    """The set divided; how many chains each part has."""
    share = split.share or (0.0 if split.date else SHARE)
    made = split_chains(
        uri,
        Clusters(table) if split.identity or share else None,
        {"valid": share} if share else {},
        released=("valid", split.date) if split.date else None,
        max_identity=split.identity or 1.0,
        allow_similar=allow_similar,
    )
    return {name: part.manifest.num_chains for name, part in made.items()}
