"""Sequences to alignments: each sequence is searched once in each database, results are cached."""

from typing import TYPE_CHECKING

from evofeed.base.lazy import names_from

if TYPE_CHECKING:
    from evofeed.featurize.search.aligned_text import pair, read_any, to_a3m
    from evofeed.featurize.search.cache import SearchCache
    from evofeed.featurize.search.cluster import read_sequences
    from evofeed.featurize.search.config import (
        Database,
        SearchConfig,
        SearchOptions,
        SearchProgress,
        SearchReport,
    )
    from evofeed.featurize.search.job import run_search, search_input
    from evofeed.featurize.search.recipes import RECIPES, cook
    from evofeed.featurize.search.search import Search
    from evofeed.featurize.search.template_files import pack_templates, packed_tar

__all__ = [
    "RECIPES",
    "Database",
    "Search",
    "SearchCache",
    "SearchConfig",
    "SearchOptions",
    "SearchProgress",
    "SearchReport",
    "cook",
    "pack_templates",
    "packed_tar",
    "pair",
    "read_any",
    "read_sequences",
    "run_search",
    "search_input",
    "to_a3m",
]

__getattr__ = names_from(__name__)
