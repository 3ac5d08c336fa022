"""Measurements of the trainer on the machine at hand."""
