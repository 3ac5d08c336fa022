"""Shared by every room: errors, configurations, files, command-line options."""
