"""One chain or complex end to end: its files to its record."""
