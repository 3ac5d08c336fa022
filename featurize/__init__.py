"""Text in, named arrays out: alignments, hits and structures become chain records."""

from typing import TYPE_CHECKING

from evofeed.base.lazy import names_from

if TYPE_CHECKING:
    from evofeed.featurize.check import CheckReport, check_input
    from evofeed.featurize.config import CropConfig, FeaturizeConfig, InputCaps
    from evofeed.featurize.formats.reading import FileRef
    from evofeed.featurize.inputs.assembly_inputs import AssemblySource, assembly_sources
    from evofeed.featurize.inputs.discovery import discover
    from evofeed.featurize.inputs.sources import ChainSource
    from evofeed.featurize.inputs.stage import stage_input
    from evofeed.featurize.records.assemblies import featurize_assembly
    from evofeed.featurize.records.chain import featurize_chain
    from evofeed.featurize.records.crop import crop_record
    from evofeed.featurize.records.openfold_raw import to_openfold_raw
    from evofeed.featurize.search import SearchConfig, SearchOptions, run_search

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
    "stage_input",
    "to_openfold_raw",
]

__getattr__ = names_from(__name__)
