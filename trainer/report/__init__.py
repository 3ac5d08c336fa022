"""Run reports: times, operators, FLOPs, as a table, JSON and a picture."""
