"""Entries in the loader: what may be drawn, one sample read and planned, features made of it."""
