"""A training set from a folder of structures, step by step.

Every step is also a command of its own and keeps finished work, so a stopped run continues when it
is run again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evofeed.base.configs import check_numbers
from evofeed.base.counts import counted
from evofeed.base.errors import InputError, JobError
from evofeed.base.files import write_atomic
from evofeed.base.options import tracked
from evofeed.featurize.assembly_commands import add_complexes
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.entries.input import EntriesInput
from evofeed.featurize.entries.job import prepare_entries
from evofeed.featurize.formats.reading import plain
from evofeed.featurize.inputs.discovery import discover
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.featurize.job.options import JobOptions
from evofeed.featurize.job.run import run_job
from evofeed.featurize.job.show import job_bar
from evofeed.featurize.search.cluster import cluster_sequences
from evofeed.featurize.search.commands import search_bar
from evofeed.featurize.search.config import Database, SearchConfig, SearchOptions
from evofeed.featurize.search.job import run_search
from evofeed.featurize.structures.listing import list_chains
from evofeed.featurize.structures.structure_files import entry_of, structure_files
from evofeed.store import Dataset, Selection, dataset_card, split_chains
from evofeed.store.inner import Clusters

IDENTITY: Final = 0.4
"""Identity of the clusters if a split gives none: AF2's, for sampling weights."""
SHARE: Final = 0.05
"""Share of chains in `valid` if a split gives neither a share nor a date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Rules for dividing a set into `train` and `valid`."""

    date: str = ""
    """ISO date: `valid` has the chains released from that day on."""
    identity: float = 0.0
    """Largest identity between a chain of one part and one of the other; 0: divide by date only."""
    share: float = 0.0
    """Largest share of the chains in `valid`."""

    def __post_init__(self) -> None:
        Selection(released_from=self.date)  # raises for an invalid date
        check_numbers(self, "identity", "share", least=0, below=1)

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Split:
        """The split of texts such as `date:2021-09-30`, `identity:0.4` and `share:0.05`.

        Raises:
            ValueError: a text has another form.
        """
        values: dict[str, Any] = {}
        for text in texts:
            name, _, value = text.partition(":")
            expected = "date:ISO-DATE, identity:0.4 or share:0.05"
            if name not in ("date", "identity", "share") or not value:
                raise ValueError(f"no split {text!r}: {expected}")
            try:
                values[name] = value if name == "date" else float(value)
            except ValueError:
                raise ValueError(f"no number in {text!r}: {expected}") from None
        return cls(**values)


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
    quiet: bool = False,
) -> dict[str, Any]:
    """Makes sequences, alignments, clusters, chains, complexes, entries, parts and a card.

    Args:
        out: folder; `data/` in it is the dataset.
        templates: folder with the structures of template hits; `structures` if empty.
        components: the wwPDB's components.cif; if given, entries are prepared too.
        quiet: print nothing: neither a line after each step nor, on a terminal, progress bars.

    Returns:
        Counts, the parts, and what was left out with its reasons.

    Raises:
        InputError: no structure with a protein chain, or a database or a program is missing.
        JobError: too many chains are broken; finished work is kept.
        TooSimilar: the parts are more similar than the split allows.
    """
    if components and not Path(components).is_file():  # checked before the search
        raise InputError("no such file", path=components)
    say = (lambda text: None) if quiet else print
    root, job = Path(out), job or JobOptions()
    uri, fasta, table = (str(root / name) for name in ("data", "chains.fasta", "clusters.tsv"))
    chains, left_out = read_chains(structures, quiet)
    root.mkdir(parents=True, exist_ok=True)
    write_atomic(Path(fasta), "".join(f">{c.chain_id}\n{c.sequence}\n" for c in chains))
    say(
        f"{counted(len(chains), 'protein chain')} of {structures}, "
        f"{counted(len(left_out), 'file')} left out"
    )
    folder = str(root / "search")
    with search_bar(quiet) as show:
        searches = run_search(
            chains, folder, databases, config=config, options=search, progress=show
        )
    left_out |= {chain["chain_id"]: [chain["message"]] for chain in searches.broken}
    say(f"{searches.searched} searches, {searches.cache_hits} cached, {searches.num_broken} broken")
    identity = (split.identity if split else 0) or IDENTITY
    clusters = _clusters(fasta, table, identity, search.threads if search else 1)
    say(f"{counted(clusters, 'cluster')} at {identity:.0%} identity")
    args = {"structure_dir": structures, "template_mmcif_dir": templates or structures}
    with job_bar(quiet) as show_job:
        report = run_job(
            folder, uri, options=job, discover_args=args, clusters=table, progress=show_job
        )
    if not report.snapshot:
        raise JobError(report.message, path=str(report.path))
    say(f"{counted(report.num_good, 'chain')} published, {report.num_broken} broken")
    result: dict[str, Any] = {"chains": report.num_good, "clusters": clusters}
    result["complexes"] = _complexes(root, uri, structures, quiet)
    if components:
        result["entries"] = _entries(root, uri, structures, components, table, job, quiet)
    complexes = counted(result["complexes"], "complex", "complexes")
    say(f"{complexes}, {counted(result.get('entries', 0), 'entry', 'entries')}")
    parts = _parts(uri, table, split, allow_similar) if split else {"main": len(Dataset.open(uri))}
    notes = {**report.notes, **{chain["chain_id"]: [chain["message"]] for chain in report.broken}}
    result |= {"parts": parts, "left_out": left_out, "cards": []}
    for name in parts:
        card = dataset_card(Dataset.open(uri, name), name=name, notes=notes | left_out)
        result["cards"].append(card.write(root / "card" / name)[0])
    write_atomic(root / "set.json", json.dumps(result, indent=1))
    return result


def read_chains(
    structures: str, quiet: bool = False
) -> tuple[list[ChainSource], dict[str, list[str]]]:
    """Sequences of the protein chains in a folder, and the reasons of files without any.

    Raises:
        InputError: no file has a protein chain.
    """
    files = structure_files(Path(structures), deep=True)
    chains: dict[str, ChainSource] = {}
    left_out: dict[str, list[str]] = {}
    listed = tracked(list_chains(files), len(files), "reading structures", quiet, "files")
    for path, sequences in zip(files, listed, strict=True):
        entry = entry_of(plain(path.name))
        if isinstance(sequences, InputError):
            left_out[entry] = [sequences.message]
            continue
        for chain, sequence in sequences.items():
            name = f"{entry}_{chain}" if chain else entry
            if name in chains:
                left_out[name] = [f"there twice, in {path} too: the first one is used"]
            else:
                chains[name] = ChainSource(name, sequence=sequence)
    if not chains:
        first = next(iter(left_out.items()), ("", ["there is no structure file in it"]))
        raise InputError(f"no protein chain: {first[1][0]}", path=structures, item=first[0] or None)
    return [chains[name] for name in sorted(chains)], left_out


def _clusters(fasta: str, table: str, identity: float, threads: int) -> int:
    """Number of clusters of the sequences; writes the table unless it is up to date."""
    key = hashlib.sha256(f"{identity} ".encode() + Path(fasta).read_bytes()).hexdigest()
    key_file = Path(f"{table}.key")
    if not (key_file.exists() and Path(table).exists() and key_file.read_text() == key):
        cluster_sequences(fasta, table, identity=identity, threads=threads, problems=[])
        write_atomic(key_file, key)
    return len({line.split("\t")[0] for line in Path(table).read_text().splitlines()})


def _complexes(root: Path, uri: str, structures: str, quiet: bool) -> int:
    try:
        config = FeaturizeConfig()
        report = add_complexes(str(root / "search"), uri, config, "main", structures, quiet=quiet)
    except InputError:  # every entry has one chain
        return 0
    return int(report["assemblies"])


def _entries(
    root: Path,
    uri: str,
    structures: str,
    components: str,
    table: str,
    job: JobOptions,
    quiet: bool,
) -> int:
    """Prepares entries with the search's alignments; returns their number.

    Their job identifies polymers by sequence, so the clusters it gets list sequences.
    """
    members = str(root / "entry_clusters.tsv")
    chains = {chain.chain_id: chain for chain in discover(str(root / "search"))}
    rows = [line.split("\t") for line in Path(table).read_text().splitlines()]
    groups: dict[str, dict[str, None]] = {}
    for representative, name in rows:
        if name in chains:
            groups.setdefault(representative, {representative: None})[chains[name].sequence] = None
    write_atomic(Path(members), "".join(f"{' '.join(group)}\n" for group in groups.values()))
    source = EntriesInput(
        structures=structures,
        components=components,
        alignments=str(root / "search"),
        clusters=members,
    )
    with job_bar(quiet, "preparing entries", "items") as show:
        report = prepare_entries(source, uri, options=job, progress=show)
    if not report.snapshot:
        raise JobError(report.message, path=str(report.path))
    return len(Dataset.open(uri).entries)


def _parts(uri: str, table: str, split: Split, allow_similar: bool) -> dict[str, int]:
    """Divides the set; number of chains by part."""
    share = split.share or (0.0 if split.date else SHARE)
    parts = split_chains(
        uri,
        Clusters(table) if split.identity or share else None,
        {"valid": share} if share else {},
        released=("valid", split.date) if split.date else None,
        max_identity=split.identity or 1.0,
        allow_similar=allow_similar,
    )
    return {name: part.manifest.num_chains for name, part in parts.items()}
