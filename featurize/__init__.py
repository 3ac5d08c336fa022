"""Text in, named arrays out: alignments, hits and structures become chain records."""

__all__: list[str] = []
