"""Crop, rows and features of Protenix."""
