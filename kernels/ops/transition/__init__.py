"""Norm and two layers with relu between: `transition`."""
