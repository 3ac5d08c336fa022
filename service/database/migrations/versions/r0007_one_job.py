"""A job has no history of attempts, and a browser's cookie names its token: no sessions."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_OF_THE_LAST = """UPDATE jobs SET log = coalesce((SELECT log FROM job_attempts
    WHERE job_attempts.job_id = jobs.id AND job_attempts.number = jobs.attempts), '')"""
_OF_EARLIER = """DELETE FROM job_chains
    WHERE attempt < (SELECT attempts FROM jobs WHERE jobs.id = job_chains.job_id)"""


def upgrade() -> None:
    """Keep the log and the chains of each job's last run."""
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
    op.drop_table("job_attempts")
    op.drop_table("sessions")


def downgrade() -> None:
    """What they held is gone: restore a backup."""
    raise NotImplementedError("restore a backup made before the upgrade")
