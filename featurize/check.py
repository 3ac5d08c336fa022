"""Check of an input before it is featurized: its contents and its faults."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from evofeed.base.counts import ReportDone
from evofeed.base.errors import EvofeedError, InputError, NoProtein, UnusedInput
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.fasta import checked_sequence
from evofeed.featurize.formats.reading import FileRef
from evofeed.featurize.inputs.clusters import NO_CLUSTER, cluster_sizes
from evofeed.featurize.inputs.discovery import discover
from evofeed.featurize.inputs.queries import query_of
from evofeed.featurize.inputs.readers.parts import read_part
from evofeed.featurize.inputs.sources import SUBFOLDERS, ChainSource, Role, why_unread
from evofeed.featurize.records.chain import chain_in
from evofeed.featurize.structures.other_molecules import describe_molecules
from evofeed.featurize.structures.structure import Structure
from evofeed.featurize.structures.structure_files import parse_structure
from evofeed.protein.residues import RESTYPES

Severity = Literal["error", "warning", "info"]
_EXAMPLES = 5

_KINDS: dict[str, tuple[Severity, str]] = {
    "bad id or unreadable file": ("error", "rename or repair it; it is left out"),
    "chain cannot be featurized": ("error", "see the reason; a job would list it as dead"),
    "no structure, sequence or alignment": ("error", "nothing to make a chain of"),
    "chain is not in its structure": ("error", "chain ids are author ids, case matters"),
    "query and structure differ in length": ("error", "alignment and structure do not fit"),
    "ids differ only in case": ("warning", "they collide on file systems that ignore case"),
    "no structure": ("warning", "usable for prediction, not for training"),
    "no alignment": ("warning", "the MSA will be the query alone"),
    "query and structure differ in letters": ("warning", "often a modified residue"),
    "template hits, but no template structures": ("warning", "name their folder by --templates"),
    "no release date": ("warning", "date filters cannot hold for it"),
    "unused file": ("warning", "it looks like a protein's, and no chain uses it"),
    "no protein": ("info", "left out; only proteins are featurized"),
    "molecules beside the proteins": ("info", "left out of the chains; left_out lists them"),
    "odd letters": ("info", "not one of the twenty: X to the model"),
    "something left out": ("info", "not read; the chain's record says so"),
    "not flattened": ("info", "read as it is; OpenFold would train on empty alignments"),
    "in no cluster": ("warning", "its cluster size will be unknown, -1"),
}


@dataclass(slots=True)
class Finding:
    """One kind of finding, with its count and the first few examples."""

    kind: str
    severity: Severity
    advice: str
    count: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass(slots=True)
class CheckReport:
    """Findings of `check_input`; with an error, chains will be missing."""

    uri: str
    chains: int = 0
    with_structure: int = 0
    with_alignments: int = 0
    residues: int = 0
    input_bytes: int = 0
    findings: dict[str, Finding] = field(default_factory=dict)
    left_out: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Ligands, glycans, nucleic acids, waters by structure file: `kind component chain count`."""
    rulesets: dict[str, dict[str, int]] = field(default_factory=dict)
    """Counts of entries taken and of molecules left out, by reason, by all-atom project."""

    @property
    def ok(self) -> bool:
        """True if no finding is an error."""
        return not any(f.severity == "error" for f in self.findings.values())

    def add(self, kind: str, example: str, count: int = 1) -> None:
        """Counts a finding, and keeps the first few examples."""
        severity, advice = _KINDS[kind]
        finding = self.findings.setdefault(kind, Finding(kind, severity, advice))
        finding.count += count
        if len(finding.examples) < _EXAMPLES:
            finding.examples.append(example)

    def sorted_findings(self) -> list[Finding]:
        """Errors first, then warnings, in a fixed order."""
        order = list(_KINDS)
        rank = {"error": 0, "warning": 1, "info": 2}
        return sorted(self.findings.values(), key=lambda f: (rank[f.severity], order.index(f.kind)))

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON-ready values."""
        names = ("uri", "chains", "with_structure", "with_alignments", "residues")
        return {
            **{name: getattr(self, name) for name in (*names, "input_bytes", "ok")},
            "left_out": self.left_out,
            "rulesets": self.rulesets,
            "findings": [
                {name: getattr(f, name) for name in f.__slots__} for f in self.sorted_findings()
            ],
        }


def check_input(
    uri: str,
    *,
    config: FeaturizeConfig | None = None,
    clusters: str = "",
    progress: ReportDone | None = None,
    **places: Any,
) -> CheckReport:
    """Check an input without writing anything.

    Args:
        clusters: file of sequence clusters, to be compared with the chains.
        progress: called with the number of chains checked so far, and of all.
        places: `structure_dir`, `template_mmcif_dir`, … as for `discover`.

    Raises:
        InputError: no such input, or the clusters are of other chains.
    """
    problems: list[InputError] = []
    sources = discover(uri, problems=problems, **places)
    report = CheckReport(uri, chains=len(sources))
    for problem in problems:
        report.add(_kind_of(problem), str(problem))
    _check_ids(sources, report)
    if clusters:
        for chain_id, size in cluster_sizes(clusters, sources).items():
            if size == NO_CLUSTER:
                report.add("in no cluster", chain_id)
    check = _Check(config or FeaturizeConfig(), report)
    for number, source in enumerate(sources, 1):
        try:
            check.chain(source)
        except NoProtein as error:
            report.add("no protein", f"{source.chain_id}: {error}")
        except EvofeedError as error:
            error.item = error.item or source.chain_id
            report.add("chain cannot be featurized", str(error))
        if progress:
            progress(number, len(sources))
    return report


def _kind_of(problem: InputError) -> str:
    if isinstance(problem, UnusedInput):
        return "unused file"
    return "no protein" if isinstance(problem, NoProtein) else "bad id or unreadable file"


def _check_ids(sources: list[ChainSource], report: CheckReport) -> None:
    by_lower_case: dict[str, str] = {}
    for source in sources:
        other = by_lower_case.setdefault(source.chain_id.lower(), source.chain_id)
        if other != source.chain_id:
            report.add("ids differ only in case", f"{other} and {source.chain_id}")


@dataclass(slots=True)
class _Check:
    """Checks chains one after the other; `cache` has the last structure or its error, as the
    chains of an entry follow each other."""

    config: FeaturizeConfig
    report: CheckReport
    cache: dict[str, Structure | InputError] = field(default_factory=dict)

    def chain(self, source: ChainSource) -> None:
        report, chain_id = self.report, source.chain_id
        files = source.alignment_files(self.config)
        alignments = [(role, ref) for role, ref in files if role in ("a3m", "stockholm")]
        report.with_structure += source.structure is not None
        report.with_alignments += bool(alignments)
        report.input_bytes += source.nbytes()
        below = (Path(ref.path).parent.name for _, ref in files)
        if source.alignment_dir and any(name in SUBFOLDERS for name in below):
            report.add("not flattened", chain_id)
        unread = [f"{ref.name}: {why}" for _, ref in files if (why := why_unread(ref.plain_name))]
        for note in (*source.notes, *unread):
            report.add("something left out", f"{chain_id}: {note}")
        if source.structure is None:
            report.add("no structure", chain_id)
            if not (alignments or source.sequence or source.fasta):
                report.add("no structure, sequence or alignment", chain_id)
                return
        if not alignments:
            report.add("no alignment", chain_id)
        has_hits = any(role in ("hhr", "hmmsearch") for role, _ in files)
        if source.template_mmcif_dir is None and has_hits:
            report.add("template hits, but no template structures", chain_id)
        self._queries(source, alignments)

    def _queries(self, source: ChainSource, alignments: Sequence[tuple[Role, FileRef]]) -> None:
        report, chain_id, sequence = self.report, source.chain_id, source.sequence
        ref = source.structure_ref()
        if ref is None and sequence:
            sequence = checked_sequence(sequence, source.assembly or source.fasta or "")
        if ref is not None:
            structure = self._structure(ref)
            if structure.lacks_date:
                report.add("no release date", chain_id)
            chains = structure.sequences
            name = chain_in(source, structure)
            if name is None:
                text = f"{chain_id}: {ref.path} has {', '.join(chains)}"
                report.add("chain is not in its structure", text)
                return
            sequence = chains[name]
        for role, file in alignments:
            query = query_of(read_part(file, self.config.caps), role, path=file.path)
            sequence = sequence or query
            where = f"{chain_id}: {file.name}"
            if len(query) != len(sequence):
                text = f"{where} has {len(query)} residues, the chain {len(sequence)}"
                report.add("query and structure differ in length", text)
            elif query != sequence:
                report.add("query and structure differ in letters", where)
        report.residues += len(sequence)
        if letters := "".join(sorted(set(sequence) - set(RESTYPES))):
            report.add("odd letters", f"{chain_id}: {letters}")

    def _structure(self, ref: FileRef) -> Structure:
        key = f"{ref.path}:{ref.offset}"
        if key not in self.cache:
            self.cache.clear()
            try:
                self.cache[key] = self._parse(ref)
            except InputError as error:
                self.cache[key] = error
        result = self.cache[key]
        if isinstance(result, InputError):
            raise type(result)(result.message, path=result.path, line=result.line)
        return result

    def _parse(self, ref: FileRef) -> Structure:
        data = read_part(ref, self.config.caps)
        structure = parse_structure(data, ref.plain_name, path=ref.path, config=self.config)
        others = structure.others
        if others:
            self.report.left_out[ref.path] = [dataclasses.asdict(item) for item in others]
        if any(molecule.kind != "water" for molecule in others):
            text = f"{ref.path}: {describe_molecules(others)}"
            self.report.add("molecules beside the proteins", text)
        return structure
