"""The database: its tables, migrations and sessions."""
