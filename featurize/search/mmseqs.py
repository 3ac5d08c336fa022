"""Databases of mmseqs: one search for many sequences, plain or as ColabFold does it.

ColabFold's databases hold a sequence per cluster, its members (`_seq`) and their alignments
to it (`_aln`). Its search takes the clusters that are similar to the query's profile, expands
them to their members, aligns these again, and filters; the environmental database and that of
templates are searched with the final profile of the first search. Calls and parameters are those
of ColabFold's `colabfold_search` and of its server, MMseqs2-App.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from evofeed.base.errors import SearchFailed
from evofeed.featurize.search.config import TEMPLATE_OPTIONS, Database, SearchConfig
from evofeed.featurize.search.programs import Scratch

_TARGET: Final = "target"
"""Links in the scratch folder to the members of clusters and to their taxonomy."""
_M8: Final = "query,target,fident,alnlen,mismatch,gapopen,qstart,qend,tstart,tend,evalue,bits,cigar"


def mmseqs(
    scratch: Scratch,
    sequences: Sequence[str],
    profiles: Sequence[bytes],
    database: Database,
    config: SearchConfig,
) -> tuple[list[bytes], list[bytes]]:
    """A3M alignments of sequences; of a template database, tables of hits in mmseqs' format (m8).

    With `config.expansion` (`filter`, `nofilter`, or `pair` for rows that are to be paired) headers
    have mmseqs' scores after the name, as ColabFold's do, and the full header after these.
    `profiles` are the final ones of a first search.

    Returns:
        The results, and the profiles for further databases, if ColabFold would use them there.
    """
    db = database.path
    call = _Call(scratch, sequences, db, config, profiles)
    options = TEMPLATE_OPTIONS if database.is_template else config.mmseqs
    call.run("search", "profiles" if profiles else "queries", db, "hits", "tmp", *options)
    if database.is_template:
        return call.tables(), []
    if not config.expansion:
        call.run("result2msa", "queries", db, "hits", "msas", "--msa-format-mode", "5")
        return call.alignments("msas", db, "hits"), []
    if profiles:
        return call.expand_clusters("profiles", "tmp/latest/profile_1", ()), []
    entries = call.entries("tmp/latest/profile_1")
    dbtype = (scratch.path / "tmp/latest/profile_1.dbtype").read_bytes()
    profiles = [dbtype + entries[number] for number in range(len(sequences))]
    call.create_profiles(profiles)
    flag = ("--expand-filter-clusters", str(int(config.expansion == "filter")))
    expand = (*flag, "--max-seq-id", "0.95")
    return call.expand_clusters("queries", "profiles", expand), profiles


class _Call:
    """One search: its files in a scratch folder, and the modules of mmseqs that write them.

    It creates the database of queries, with their numbers as keys, and the database of the
    `profiles` that they are searched with, if there are any.
    """

    def __init__(
        self,
        scratch: Scratch,
        sequences: Sequence[str],
        db: str,
        config: SearchConfig,
        profiles: Sequence[bytes],
    ) -> None:
        self.scratch, self.db, self.config = scratch, db, config
        self.count = len(sequences)
        query = scratch.query(*sequences)
        scratch.run("mmseqs", "createdb", query, "queries", "--shuffle", "0", "--dbtype", "1")
        if profiles:
            self.create_profiles(profiles)

    def run(self, module: str, *arguments: str) -> None:
        """Run a module of mmseqs."""
        self.scratch.run("mmseqs", module, *arguments, "--threads", str(self.config.threads))

    def create_profiles(self, profiles: Sequence[bytes]) -> None:
        """Create the database of profiles, each of which begins with its dbtype."""
        index, offset = [], 0
        for number, profile in enumerate(profiles):
            size = len(profile) - 4 + 1
            index.append(f"{number}\t{offset}\t{size}\n")
            offset += size
        self.scratch.file("profiles", b"".join(profile[4:] + b"\0" for profile in profiles))
        self.scratch.file("profiles.index", "".join(index).encode())
        self.scratch.file("profiles.dbtype", profiles[0][:4])
        self.scratch.run("mmseqs", "lndb", "queries_h", "profiles_h")

    def part(self, suffix: str) -> str:
        """A part of the database: its index, which has all parts, or the file with the suffix."""
        if Path(f"{self.db}.idx.dbtype").exists():
            return f"{self.db}.idx"
        return f"{self.db}{suffix}"

    def expand_clusters(self, queries: str, profiles: str, expand: tuple[str, ...]) -> list[bytes]:
        """Alignments of hits expanded to the members of clusters, aligned again and filtered."""
        config, hits = self.config, "hits"
        members = self.db
        if Path(f"{self.db}_aln.dbtype").exists():
            members = self.part("_seq")
            limits = ("-e", "inf", "--expansion-mode", "0", *expand)
            self.run("expandaln", queries, members, hits, self.part("_aln"), "members", *limits)
            self.run("align", profiles, members, "members", "aligned", *config.align_options())
            hits = "aligned"
        if config.expansion != "pair":
            score = "0.8" if config.expansion == "filter" else "-20.0"
            limits = ("--qid", "0", "--qsc", score, "--diff", "0", "--max-seq-id", "1.0")
            enable = ("--filter-min-enable", "100")
            self.run("filterresult", "queries", members, hits, "filtered", *limits, *enable)
            hits = "filtered"
        options = ("--msa-format-mode", "6", *config.msa_options())
        self.run("result2msa", "queries", members, hits, "msas", *options)
        return self.alignments("msas", members, hits)

    def tables(self) -> list[bytes]:
        """Tables of hits by query, which is named `query` in each."""
        columns = ("--format-output", _M8, "--db-output", "1")
        self.run("convertalis", "profiles", self.part(""), "hits", "m8", *columns)
        entries = self.entries("m8")
        tables = (entries[number].splitlines() for number in range(self.count))
        return [
            b"".join(b"query\t" + row.partition(b"\t")[2] + b"\n" for row in rows)
            for rows in tables
        ]

    def alignments(self, name: str, members: str, hits: str) -> list[bytes]:
        """The alignments of all queries, with full headers."""
        entries = self.entries(name)
        headers = self._headers(members, hits)
        if missing := [i for i in range(self.count) if i not in entries]:
            raise SearchFailed(f"mmseqs gave {len(missing)} of {self.count} queries no alignment")
        return [_with_headers(entries[number], headers) for number in range(self.count)]

    def entries(self, name: str) -> dict[int, bytes]:
        """The entries of a database by key, without their final NUL."""
        path = self.scratch.path / name
        index = self.scratch.result(f"{name}.index", "mmseqs")
        parts = [path] if path.exists() else sorted(path.parent.glob(f"{path.name}.[0-9]*"))
        data = b"".join(part.read_bytes() for part in parts)
        spans = (map(int, line.split()) for line in index.splitlines())
        return {key: data[offset : offset + size - 1] for key, offset, size in spans}

    def _headers(self, members: str, hits: str) -> dict[bytes, bytes]:
        """The full headers of hits by their first words, which are all that `result2msa` writes.

        Headers name organisms. A database with taxonomy (`createtaxdb`) adds taxon ids.
        """
        has_taxa = Path(f"{self.db}_mapping").exists()
        if has_taxa and members != self.db and not members.endswith(".idx"):
            members = self._link_taxonomy(members)
        columns = "target,theader" + (",taxid" if has_taxa else "")
        self.run("convertalis", "queries", members, hits, "headers", "--format-output", columns)
        headers = {}
        for line in (self.scratch.path / "headers").read_bytes().splitlines():
            name, header, *taxid = line.split(b"\t")
            if taxid and b"TaxID=" not in header and b"OX=" not in header:
                header += b" TaxID=" + taxid[0]
            headers[name] = header
        return headers

    def _link_taxonomy(self, members: str) -> str:
        """Link the members and the database's taxonomy under one prefix, as mmseqs expects."""
        for tail in ("", ".index", ".dbtype", "_h", "_h.index", "_h.dbtype"):
            (self.scratch.path / f"{_TARGET}{tail}").symlink_to(f"{members}{tail}")
        for tail in ("_mapping", "_taxonomy"):
            (self.scratch.path / f"{_TARGET}{tail}").symlink_to(f"{self.db}{tail}")
        return _TARGET


def _with_headers(a3m: bytes, headers: Mapping[bytes, bytes]) -> bytes:
    """An A3M with the full headers, after mmseqs' scores if it has them."""
    lines = a3m.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if line.startswith(b">"):
            name, tab, scores = line[1:].rstrip().partition(b"\t")
            words = headers.get(name, name).partition(b" ")[2]
            rest = (b"\t" if tab else b" ") + words if words else b""
            lines[number] = b">" + (name + tab + scores + rest if number else b"query") + b"\n"
    return b"".join(lines)
