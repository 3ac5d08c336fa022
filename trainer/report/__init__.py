"""What a run report says: times, operators, FLOPs, as a table, JSON and a picture."""
