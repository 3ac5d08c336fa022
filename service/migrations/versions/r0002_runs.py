"""Folders of training runs."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table of runs."""
    op.create_table(
        "runs",
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("dataset_id", sa.Integer(), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("principal", sa.String(length=128), nullable=False),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("name"),
    )


def downgrade() -> None:
    """Take it away."""
    op.drop_table("runs")
