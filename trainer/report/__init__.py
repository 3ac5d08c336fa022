"""Run reports: times, operators, FLOPs, as a table, JSON and an HTML page."""
