"""Simulated protein families as raw files: what the demo and the tests feed on."""

from evofeed.featurize.synth.write import SynthReport, write_synthetic

__all__ = ["SynthReport", "write_synthetic"]
