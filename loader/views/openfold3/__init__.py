"""Crop, rows and features of OpenFold3."""
