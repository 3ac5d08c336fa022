"""Simulated protein families as raw files: what the demo and the tests feed on."""

from typing import TYPE_CHECKING

from evofeed.lazy import names_from

if TYPE_CHECKING:
    from evofeed.synth.write import SynthReport, write_synthetic

__all__ = ["SynthReport", "write_synthetic"]

__getattr__ = names_from(__name__)
