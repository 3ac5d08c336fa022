"""Quotas of tokens; webhooks and what is to be sent to them."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and tables."""
    op.add_column("tokens", sa.Column("max_jobs", sa.Integer()))
    op.add_column("tokens", sa.Column("max_chains", sa.Integer()))
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.LargeBinary(32), nullable=False),
        sa.Column("datasets", sa.JSON()),
        sa.Column("principal", sa.String(128), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("disabled", sa.Text(), nullable=False),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column(
            "webhook_id",
            sa.String(16),
            sa.ForeignKey("webhooks.id", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.Double()),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.UniqueConstraint("webhook_id", "job_id", "ended_at", name="uq_deliveries_end"),
    )
    op.create_index("ix_deliveries_due", "deliveries", ["due_at"])


def downgrade() -> None:
    """Drop them."""
    op.drop_table("deliveries")
    op.drop_table("webhooks")
    op.drop_column("tokens", "max_chains")
    op.drop_column("tokens", "max_jobs")
