"""Shards sent over HTTP, the quota of their bytes, and when snapshots were first seen."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add two tables and a column."""
    op.create_table(
        "uploads",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("dataset_id", sa.Integer(), nullable=False),
        sa.Column("shard", sa.String(length=128), nullable=False),
        sa.Column("nbytes", sa.BigInteger(), nullable=False),
        sa.Column("principal", sa.String(length=128), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_uploads_principal", "uploads", ["principal", "at"], unique=False)
    op.create_table(
        "snapshots",
        sa.Column("dataset_id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("written_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("dataset_id", "digest"),
    )
    op.add_column("tokens", sa.Column("max_bytes", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Take them away."""
    op.drop_column("tokens", "max_bytes")
    op.drop_table("snapshots")
    op.drop_table("uploads")
