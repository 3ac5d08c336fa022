"""The first tables: datasets, ref history, jobs, tokens, audit, idempotency, secrets."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create everything."""
    op.create_table(
        "datasets",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("name", sa.String(128), nullable=False, unique=True),
        sa.Column("folded", sa.String(128), nullable=False, unique=True),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
    )
    op.create_table(
        "ref_moves",
        sa.Column("id", sa.Integer(), primary_key=True),
        _dataset_id(),
        sa.Column("ref", sa.String(128), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("previous", sa.String(64)),
        sa.Column("moved_at", sa.Double(), nullable=False),
        sa.Column("principal", sa.String(128), nullable=False),
    )
    op.create_index("ix_ref_moves_ref", "ref_moves", ["dataset_id", "ref", "id"])
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(32), primary_key=True),
        _dataset_id(),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("progress", sa.JSON(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("principal", sa.String(128), nullable=False),
    )
    op.create_index("ix_jobs_state", "jobs", ["state"])
    _create_bookkeeping()


def _create_bookkeeping() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("label", sa.String(128), nullable=False),
        sa.Column("secret_sha256", sa.LargeBinary(32), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("datasets", sa.JSON()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double()),
        sa.Column("revoked_at", sa.Double()),
        sa.Column("last_used_at", sa.Double()),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("principal", sa.String(128), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("subject", sa.String(256), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_table(
        "idempotency",
        sa.Column("principal", sa.String(128), primary_key=True),
        sa.Column("key", sa.String(128), primary_key=True),
        sa.Column("request_sha256", sa.String(64), nullable=False),
        sa.Column("status", sa.Integer()),
        sa.Column("media_type", sa.String(128), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
    )
    op.create_table(
        "secrets",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.LargeBinary(32), nullable=False),
    )


def _dataset_id() -> "sa.Column[int]":
    return sa.Column(
        "dataset_id",
        sa.Integer(),
        sa.ForeignKey("datasets.id", ondelete="CASCADE"),
        nullable=False,
    )


def downgrade() -> None:
    """Drop everything."""
    for table in ("secrets", "idempotency", "audit", "tokens", "jobs", "ref_moves", "datasets"):
        op.drop_table(table)
