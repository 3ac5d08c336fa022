"""Removes what the service no longer does, such as quotas, uploads and webhooks; a job has no
history of attempts, and a browser's cookie names its token: no sessions."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0005"

_TABLES = ("deliveries", "webhooks", "uploads", "runs", "idempotency", "snapshots", "job_attempts",
           "sessions", "ref_intents")  # fmt: skip
_COLUMNS = {"tokens": ("max_jobs", "max_chains", "max_bytes"), "tickets": ("charged",)}
_OF_THE_LAST = """UPDATE jobs SET log = coalesce((SELECT log FROM job_attempts
    WHERE job_attempts.job_id = jobs.id AND job_attempts.number = jobs.attempts), '')"""
_OF_EARLIER = """DELETE FROM job_chains
    WHERE attempt < (SELECT attempts FROM jobs WHERE jobs.id = job_chains.job_id)"""


def upgrade() -> None:
    """Keep the log and the chains of each job's last run; drop the rest."""
    for name, kind, at_first in (
        ("deaths", sa.Integer(), "0"),
        ("furthest", sa.Integer(), "0"),
        ("log", sa.Text(), ""),
    ):
        op.add_column("jobs", sa.Column(name, kind, nullable=False, server_default=at_first))
    op.execute(_OF_THE_LAST)
    op.execute(_OF_EARLIER)
    with op.batch_alter_table("job_chains") as batch:
        batch.drop_index("ix_job_chains_attempt")
        batch.drop_column("attempt")
    op.create_index("ix_job_chains_job", "job_chains", ["job_id", "kind", "id"])
    inspector = sa.inspect(op.get_bind())
    for table in _TABLES:
        if inspector.has_table(table):
            op.drop_table(table)
    for table, names in _COLUMNS.items():
        columns = {column["name"] for column in inspector.get_columns(table)}
        with op.batch_alter_table(table) as batch:
            for name in columns.intersection(names):
                batch.drop_column(name)


def downgrade() -> None:
    """The dropped rows cannot be restored; a backup can."""
    raise NotImplementedError("restore a backup made before the upgrade")
