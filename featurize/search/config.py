"""Databases, settings and options of a search, its progress and its report."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from evofeed.base.configs import check_numbers
from evofeed.featurize.job.options import ExecutorOptions

Kind = Literal["fasta", "rna", "hh", "mmseqs"]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*$")


@dataclass(frozen=True, slots=True)
class Database:
    """A sequence database: its name, its path and its own settings.

    Attributes:
        name: prefix of result names; Ray nodes that hold it have the resource `db:NAME`.
        path: a FASTA file, or the prefix of a database of hh-suite or mmseqs.
        max_hits: maximum of alignment rows, the query included; None takes the recipe's.
        is_template: hits in it are templates, found with the profile of the first alignment.
        more: prefixes of further databases of hh-suite, searched in one call with it.
        pairs: rows are for pairing the chains of a complex.
        joint: name of the joint search that this database is part of.
        is_rna: a FASTA file of nucleic acids, in which RNA is searched and no protein.
    """

    name: str
    path: str
    max_hits: int | None = None
    is_template: bool = False
    more: tuple[str, ...] = ()
    pairs: bool = False
    joint: str = ""
    is_rna: bool = False

    @classmethod
    def parse(cls, text: str, *, is_template: bool = False) -> Database:
        """Read `[NAME=]PATH[,max_hits=N]`.

        Raises:
            ValueError: an unknown option, or a value that is not a number.
        """
        path, _, options = (text, "", "") if Path(text).exists() else text.partition(",")
        name, equals, rest = path.partition("=")
        if equals and _NAME.match(name) and not Path(path).exists():
            path = rest
        else:
            name = ""
        max_hits = None
        for option in filter(None, options.split(",")):
            key, _, value = option.partition("=")
            if key != "max_hits" or not value.isdecimal() or int(value) < 1:
                raise ValueError(f"{text!r}: {option!r} is not max_hits=N")
            max_hits = int(value)
        name = name or re.sub(r"[^A-Za-z0-9_-]", "_", Path(path).name.partition(".")[0])
        return cls(name, path, max_hits, is_template)

    @property
    def kind(self) -> Kind | None:
        """Format of its files, None if it is not on this machine."""
        if all(Path(f"{path}_cs219.ffdata").exists() for path in self.paths):
            return "hh"
        if self.more:
            return None
        if Path(f"{self.path}.dbtype").exists():
            return "mmseqs"
        if not Path(self.path).is_file():
            return None
        return "rna" if self.is_rna else "fasta"

    @property
    def paths(self) -> tuple[str, ...]:
        """Its path, and those of the databases searched with it in one call."""
        return (self.path, *self.more)

    @property
    def resource(self) -> str:
        """Ray resource of nodes that hold it: `ray start --resources='{"db:NAME": 1}'`."""
        return f"db:{self.name}"


TEMPLATE_OPTIONS: Final = tuple("--db-load-mode 2 -a 1 -e 0.1 -s 7.5".split())
"""ColabFold's options of `mmseqs search` in a database of templates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """Settings of searches; `recipes.RECIPES` has those of AlphaFold's and other pipelines."""

    e_value: float = 1e-4
    """jackhmmer: sequences up to this E-value enter the alignment."""
    iterations: int = 1
    """Rounds of jackhmmer."""
    max_hits: int = 10_000
    """Maximum of alignment rows per database, best hits first; the query counts as one."""
    hhblits: tuple[str, ...] = (
        *("-n", "3", "-e", "0.001", "-maxseq", "1000000", "-realign_max", "100000"),
        *("-maxfilt", "100000", "-min_prefilter_hits", "1000"),
    )
    """Options of hhblits (AF2 SI 1.2.2 and its code)."""
    mmseqs: tuple[str, ...] = (
        *("--num-iterations", "3", "-a", "1", "-e", "0.1", "--max-seqs", "10000"),
    )
    """Options of `mmseqs search`."""
    expansion: Literal["", "filter", "nofilter", "pair"] = ""
    """mmseqs: expand clusters as ColabFold does, with or without its filters, or for pairing.
    Databases after the first then start from the final profile of the first."""
    template_e_value: float = 100.0
    """hmmsearch: template hits up to this E-value are listed; the prefilter comes later."""
    template_profile: tuple[str, ...] = ()
    """Databases whose joint rows, without duplicates, make the profile of a template search;
    empty takes the first database."""
    rna_e_value: float = 1e-3
    """nhmmer: sequences up to this E-value enter the alignment."""
    hhsearch: tuple[str, ...] = ("-maxseq", "1000000")
    """Options of hhsearch."""
    threads: int = 1
    """Threads of one search. Many searches at once with one thread each are faster."""

    def __post_init__(self) -> None:
        check_numbers(self, "threads", "iterations", "max_hits", least=1)

    def align_options(self) -> tuple[str, ...]:
        """ColabFold's options of `mmseqs align` for members of clusters."""
        if self.expansion == "pair":
            return ("-e", "0.001", "--max-accept", "1000000", "-a")
        accept = "100000" if self.expansion == "filter" else "1000000"
        return ("-e", "10", "--max-accept", accept, "--alt-ali", "10", "-a")

    def msa_options(self) -> tuple[str, ...]:
        """ColabFold's options of `mmseqs result2msa`; rows for pairing are not filtered."""
        if self.expansion == "pair":
            return ()
        is_filtered = "1" if self.expansion == "filter" else "0"
        limits = "--filter-min-enable 1000 --diff 3000 --qid 0.0,0.2,0.4,0.6,0.8,1.0 --qsc 0"
        return ("--filter-msa", is_filtered, *limits.split(), "--max-seq-id", "0.95")

    @classmethod
    def colabfold(cls, **changes: Any) -> SearchConfig:
        """ColabFold's settings: three rounds, clusters expanded, members aligned and filtered."""
        flags = "--num-iterations 3 --db-load-mode 2 -a 1 --k-score seq:96,prof:80 -e 0.1"
        options = (*flags.split(), "--max-seqs", "10000")
        settings = {"mmseqs": options, "expansion": "filter", "max_hits": 1_000_000}
        return cls(**{**settings, **changes})

    def rows_of(self, database: Database) -> int:
        """Maximum of alignment rows of a database."""
        return database.max_hits or self.max_hits

    def result_settings(self, kind: Kind, is_template: bool) -> dict[str, object]:
        """The settings that results of one kind of database depend on, except the row limit."""
        if kind == "mmseqs":
            if is_template:
                return {"mmseqs": TEMPLATE_OPTIONS}
            expansion = {"expansion": self.expansion} if self.expansion else {}
            # `gpu` is part of the keys of cached results.
            return {"mmseqs": self.mmseqs, "gpu": False, **expansion}
        if kind == "hh":
            return {"hhsearch": self.hhsearch} if is_template else {"hhblits": self.hhblits}
        if kind == "rna":
            return {"rna_e_value": self.rna_e_value}
        if is_template:
            return {"template_e_value": self.template_e_value}
        return {"e_value": self.e_value, "iterations": self.iterations}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions(ExecutorOptions):
    """Locations and limits of a search. Its results do not depend on any of them."""

    executor: str = "local"
    """`local` (processes of this machine), `ray`, or `auto`."""
    threads: int = 1
    """Cores of one search, as `SearchConfig.threads`."""
    cache_dir: str = ""
    """Folder of the cache that searches share; empty: `cache/` in the folder of the index."""
    scratch: str = ""
    """Folder for temporary files of the programs, on every machine; empty: the system's."""
    deadline: float = 7200.0
    """Seconds one call of a program may take."""

    def __post_init__(self) -> None:
        ExecutorOptions.__post_init__(self)
        check_numbers(self, "threads", least=1)

    @property
    def cores(self) -> int:
        """Cores that a unit takes."""
        return self.threads


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """Progress of a search."""

    searched: int
    cache_hits: int
    share: float
    """Done share of the current stage, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchReport:
    """Outcome of a search.

    Attributes:
        digest: of all results: the same for the same sequences, databases and settings.
        num_chains, num_sequences: chains of the input, and distinct sequences of these.
        num_broken: chains that lack a result.
        searched: searches of this run, of one sequence in one database.
        cache_hits: results that the cache had already.
        databases: each with its digest, program, settings, and `worker_hours_per_1000`.
        broken: `chain_id database type message` of each.
    """

    digest: str
    num_chains: int
    num_sequences: int
    num_broken: int
    searched: int
    cache_hits: int
    lost_workers: int
    seconds: float
    databases: tuple[dict[str, Any], ...]
    broken: tuple[dict[str, Any], ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return dataclasses.asdict(self)
