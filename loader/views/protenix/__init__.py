"""Entries as Protenix sees them."""
