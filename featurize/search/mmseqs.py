"""Databases of mmseqs: one search for many sequences, plain or as ColabFold does it.

ColabFold's databases hold a sequence for each cluster, beside them the members (`_seq`) and how
these are aligned to it (`_aln`). Its search takes the clusters that are like the query's profile,
expands them to their members, aligns these again, and filters; the environmental database and
that of templates are searched with the profile that the first search ended with. Calls and
parameters are those of ColabFold's `colabfold_search` and of its server, MMseqs2-App.
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
    """A3M alignments of sequences, of a database of PDB chains their hits as mmseqs' table (m8).

    With `config.expansion` (`filter`, `nofilter`, or `pair` for rows that are to be paired) headers
    have mmseqs' figures behind the name, as ColabFold's do, and the whole header behind these.
    `profiles` are those that a first search ended with.

    Returns:
        What was found, and the profiles for further databases, if ColabFold would use them there.
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
        return call.expanded("profiles", "tmp/latest/profile_1", ()), []
    found = call.entries("tmp/latest/profile_1")
    kind = (scratch.path / "tmp/latest/profile_1.dbtype").read_bytes()
    kept = [kind + found[number] for number in range(len(sequences))]
    call.create_profiles(kept)
    flag = ("--expand-filter-clusters", str(int(config.expansion == "filter")))
    return call.expanded("queries", "profiles", (*flag, "--max-seq-id", "0.95")), kept


class _Call:
    """One search: its files in a scratch folder, and the programs that make them.

    It begins with the database of queries, their numbers its keys, and that of the `profiles`
    they are searched with, if these are there.
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
        """A module of mmseqs, to its good end."""
        self.scratch.run("mmseqs", module, *arguments, "--threads", str(self.config.threads))

    def create_profiles(self, profiles: Sequence[bytes]) -> None:
        """The database of profiles, each with its type before it."""
        index, offset = [], 0
        for number, profile in enumerate(profiles):
            size = len(profile) - 4 + 1
            index.append(f"{number}\t{offset}\t{size}\n")
            offset += size
        self.scratch.file("profiles", b"".join(profile[4:] + b"\0" for profile in profiles))
        self.scratch.file("profiles.index", "".join(index).encode())
        self.scratch.file("profiles.dbtype", profiles[0][:4])
        self.scratch.run("mmseqs", "lndb", "queries_h", "profiles_h")

    def part(self, plain: str, joint: str) -> str:
        """A part of the database: in its index if it has one, else beside it."""
        if Path(f"{self.db}.idx.dbtype").exists():
            return f"{self.db}.idx"
        return f"{self.db}{joint}{plain}"

    def expanded(self, queries: str, profiles: str, expand: tuple[str, ...]) -> list[bytes]:
        """Hits expanded to the members of clusters, aligned again, and filtered."""
        config, hits = self.config, "hits"
        members = self.db
        if Path(f"{self.db}_aln.dbtype").exists():
            members = self.part("seq", "_")
            limits = ("-e", "inf", "--expansion-mode", "0", *expand)
            self.run("expandaln", queries, members, hits, self.part("aln", "_"), "members", *limits)
            self.run("align", profiles, members, "members", "aligned", *config.align_options())
            hits = "aligned"
        if config.expansion != "pair":
            score = "0.8" if config.expansion == "filter" else "-20.0"
            limits = ("--qid", "0", "--qsc", score, "--diff", "0", "--max-seq-id", "1.0")
            enable = ("--filter-min-enable", "100")
            self.run("filterresult", "queries", members, hits, "kept", *limits, *enable)
            hits = "kept"
        shape = ("--msa-format-mode", "6", *config.msa_options())
        self.run("result2msa", "queries", members, hits, "msas", *shape)
        return self.alignments("msas", members, hits)

    def tables(self) -> list[bytes]:
        """Hits as tables, the query called `query`."""
        shape = ("--format-output", _M8, "--db-output", "1")
        self.run("convertalis", "profiles", self.part("", ""), "hits", "m8", *shape)
        tables = self.entries("m8")
        rows = (tables[number].splitlines() for number in range(self.count))
        return [
            b"".join(b"query\t" + row.partition(b"\t")[2] + b"\n" for row in own) for own in rows
        ]

    def alignments(self, name: str, members: str, hits: str) -> list[bytes]:
        """The alignments of all queries, whole headers in them."""
        entries = self.entries(name)
        headers = self._headers(members, hits)
        if missing := [i for i in range(self.count) if i not in entries]:
            raise SearchFailed(f"mmseqs gave {len(missing)} of {self.count} queries no alignment")
        return [_named(entries[number], headers) for number in range(self.count)]

    def entries(self, name: str) -> dict[int, bytes]:
        """The entries of a database by key, without the NUL at the end of each."""
        path = self.scratch.path / name
        index = self.scratch.result(f"{name}.index", "mmseqs")
        parts = [path] if path.exists() else sorted(path.parent.glob(f"{path.name}.[0-9]*"))
        data = b"".join(part.read_bytes() for part in parts)
        found = {}
        for line in index.splitlines():
            key, offset, size = map(int, line.split())
            found[key] = data[offset : offset + size - 1]
        return found

    def _headers(self, members: str, hits: str) -> dict[bytes, bytes]:
        """The whole headers of hits by their first words: `result2msa` keeps only those.

        They say what a row is of. A database with taxonomy (`createtaxdb`) gives taxon ids too.
        """
        has_taxa = Path(f"{self.db}_mapping").exists()
        if has_taxa and members != self.db and not members.endswith(".idx"):
            members = self._linked(members)
        columns = "target,theader" + (",taxid" if has_taxa else "")
        self.run("convertalis", "queries", members, hits, "headers", "--format-output", columns)
        found = {}
        for line in (self.scratch.path / "headers").read_bytes().splitlines():
            name, header, *taxid = line.split(b"\t")
            if taxid and b"TaxID=" not in header and b"OX=" not in header:
                header += b" TaxID=" + taxid[0]
            found[name] = header
        return found

    def _linked(self, members: str) -> str:
        """The members, with the taxonomy of the database beside them, where mmseqs looks."""
        for tail in ("", ".index", ".dbtype", "_h", "_h.index", "_h.dbtype"):
            (self.scratch.path / f"{_TARGET}{tail}").symlink_to(f"{members}{tail}")
        for tail in ("_mapping", "_taxonomy"):
            (self.scratch.path / f"{_TARGET}{tail}").symlink_to(f"{self.db}{tail}")
        return _TARGET


def _named(a3m: bytes, headers: Mapping[bytes, bytes]) -> bytes:
    """An A3M with the whole headers, behind mmseqs' figures if it has them."""
    lines = a3m.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if line.startswith(b">"):
            name, tab, figures = line[1:].rstrip().partition(b"\t")
            words = headers.get(name, name).partition(b" ")[2]
            behind = (b"\t" if tab else b" ") + words if words else b""
            lines[number] = b">" + (name + tab + figures + behind if number else b"query") + b"\n"
    return b"".join(lines)
