"""Prediction of chains and complexes: structures, confidences, pictures and pages."""
