"""Without what the service does no more: quotas, uploads, runs, webhooks and kept answers."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_TABLES = ("deliveries", "webhooks", "uploads", "runs", "idempotency")
_COLUMNS = {"tokens": ("max_jobs", "max_chains", "max_bytes"), "tickets": ("charged",)}


def upgrade() -> None:
    """Drop them, whichever are there."""
    there = sa.inspect(op.get_bind())
    for table in _TABLES:
        if there.has_table(table):
            op.drop_table(table)
    for table, names in _COLUMNS.items():
        columns = {column["name"] for column in there.get_columns(table)}
        with op.batch_alter_table(table) as batch:
            for name in columns.intersection(names):
                batch.drop_column(name)


def downgrade() -> None:
    """What they held is gone: restore a backup."""
    raise NotImplementedError("restore a backup made before the upgrade")
