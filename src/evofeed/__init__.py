"""evofeed: raw alignments to GPU-ready AlphaFold2 features, and a trainer to match."""

__version__ = "0.2.0"

__all__ = ["__version__"]
