"""The tables of evofeed 0.1.0, from which later revisions start.

A new database gets the newest tables of `evofeed.service.database.tables`, and no revision is run
on it.
"""

revision = "0005"
down_revision = None


def upgrade() -> None:
    """Nothing: a database without tables is not upgraded but made."""
