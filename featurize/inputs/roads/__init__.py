"""Inputs of other programs, one module each: what their files hold for one chain."""
