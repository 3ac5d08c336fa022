"""Logs of a run: times, steps, boards."""
