"""Text in, named arrays out: alignments, hits and structures become chain records."""

from typing import TYPE_CHECKING

from evofeed.lazy import names_from

if TYPE_CHECKING:
    from evofeed.featurize.assemblies import featurize_assembly
    from evofeed.featurize.assembly_inputs import AssemblySource, assembly_sources
    from evofeed.featurize.chain import featurize_chain
    from evofeed.featurize.check import CheckReport, check_input
    from evofeed.featurize.config import CropConfig, FeaturizeConfig, InputCaps
    from evofeed.featurize.crop import crop_record
    from evofeed.featurize.discovery import discover
    from evofeed.featurize.openfold_raw import to_openfold_raw
    from evofeed.featurize.reading import FileRef
    from evofeed.featurize.search import SearchConfig, SearchOptions, run_search, search_fasta
    from evofeed.featurize.sources import ChainSource
    from evofeed.featurize.stage import stage_input

__all__ = [
    "AssemblySource",
    "ChainSource",
    "CheckReport",
    "CropConfig",
    "FeaturizeConfig",
    "FileRef",
    "InputCaps",
    "SearchConfig",
    "SearchOptions",
    "assembly_sources",
    "check_input",
    "crop_record",
    "discover",
    "featurize_assembly",
    "featurize_chain",
    "run_search",
    "search_fasta",
    "stage_input",
    "to_openfold_raw",
]

__getattr__ = names_from(__name__)
