"""Simulated protein families as raw files, for the demo and the tests."""

from typing import TYPE_CHECKING

from evofeed.base.lazy import names_from

if TYPE_CHECKING:
    from evofeed.synth.entries import write_entries
    from evofeed.synth.write import SynthReport, write_synthetic

__all__ = ["SynthReport", "write_entries", "write_synthetic"]

__getattr__ = names_from(__name__)
