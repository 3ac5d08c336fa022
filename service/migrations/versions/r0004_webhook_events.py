"""Webhooks for refs and quarantined chains: what is told of has a name of its own."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Two names for two columns, and two columns more."""
    op.execute("ALTER TABLE deliveries RENAME COLUMN job_id TO subject")
    op.execute("ALTER TABLE deliveries RENAME COLUMN ended_at TO at")
    op.add_column("webhooks", sa.Column("events", sa.JSON(), nullable=True))
    op.add_column(
        "webhooks", sa.Column("after_move", sa.Integer(), nullable=False, server_default="0")
    )


def downgrade() -> None:
    """As it was."""
    op.drop_column("webhooks", "after_move")
    op.drop_column("webhooks", "events")
    op.execute("ALTER TABLE deliveries RENAME COLUMN at TO ended_at")
    op.execute("ALTER TABLE deliveries RENAME COLUMN subject TO job_id")
