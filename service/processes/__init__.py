"""The processes that listen: one, or several workers on one socket."""
