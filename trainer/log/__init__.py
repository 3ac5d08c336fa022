"""What a run writes down as it goes: times, steps, boards."""
