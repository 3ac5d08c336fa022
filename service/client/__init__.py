"""The client of a service in Python, and its commands."""
