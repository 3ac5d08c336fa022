"""Search for the fastest settings of a run on this machine, by short trial runs."""
