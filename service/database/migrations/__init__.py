"""Alembic migrations; the service applies them to its embedded SQLite at start."""
