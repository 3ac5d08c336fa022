"""Which settings of a run are fastest on the machine at hand, by short runs of it."""
