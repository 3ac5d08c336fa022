"""Jobs that featurize an input into a published snapshot, exactly once despite crashes."""

from typing import TYPE_CHECKING

from evofeed.base.lazy import names_from

if TYPE_CHECKING:
    from evofeed.featurize.config import CropConfig, FeaturizeConfig
    from evofeed.featurize.job.account import (
        Entries,
        JobHost,
        JobProgress,
        JobReport,
        broken_entries,
        note_entries,
    )
    from evofeed.featurize.job.dispatch import open_executor
    from evofeed.featurize.job.executors import Executor
    from evofeed.featurize.job.ledger import Ledger
    from evofeed.featurize.job.options import JobOptions, ledger_url
    from evofeed.featurize.job.run import run_job

__all__ = [
    "CropConfig",
    "Entries",
    "Executor",
    "FeaturizeConfig",
    "JobHost",
    "JobOptions",
    "JobProgress",
    "JobReport",
    "Ledger",
    "ledger_url",
    "broken_entries",
    "note_entries",
    "open_executor",
    "run_job",
]

__getattr__ = names_from(__name__)
