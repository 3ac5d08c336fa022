"""From sequences to alignments: each sequence once in each database, results kept by content."""

from typing import TYPE_CHECKING

from evofeed.lazy import names_from

if TYPE_CHECKING:
    from evofeed.featurize.search.cache import SearchCache
    from evofeed.featurize.search.config import Database, SearchConfig
    from evofeed.featurize.search.fasta_search import read_sequences, search_fasta
    from evofeed.featurize.search.job import run_search
    from evofeed.featurize.search.options import SearchOptions, SearchProgress, SearchReport

__all__ = [
    "Database",
    "SearchCache",
    "SearchConfig",
    "SearchOptions",
    "SearchProgress",
    "SearchReport",
    "read_sequences",
    "run_search",
    "search_fasta",
]

__getattr__ = names_from(
    __name__,
    {
        "Database": "config",
        "SearchCache": "cache",
        "SearchConfig": "config",
        "SearchOptions": "options",
        "SearchProgress": "options",
        "SearchReport": "options",
        "read_sequences": "fasta_search",
        "run_search": "job",
        "search_fasta": "fasta_search",
    },
)
