"""Jobs no longer keep a process id: nobody ever read it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop the column."""
    op.drop_column("jobs", "pid")


def downgrade() -> None:
    """Bring it back, empty."""
    op.add_column("jobs", sa.Column("pid", sa.Integer()))
