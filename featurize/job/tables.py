"""The tables of the ledger, and the states that jobs and units go through."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

TODO, LEASED, DONE = "todo", "leased", "done"
RUNNING, PUBLISHED, FAILED, CANCELLED = "running", "published", "failed", "cancelled"

Job = sa.Row[Any]
"""A row of `JOBS`; times are Unix seconds."""

METADATA = sa.MetaData()
JOBS = sa.Table(
    "featurize_jobs",
    METADATA,
    sa.Column("job_id", sa.String(64), primary_key=True),
    sa.Column("input_uri", sa.Text, nullable=False),
    sa.Column("dataset_uri", sa.Text, nullable=False),
    sa.Column("arguments", sa.JSON, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("message", sa.Text, nullable=False, default=""),
    sa.Column("cancel_requested", sa.Boolean, nullable=False, default=False),
    sa.Column("num_chains", sa.Integer, nullable=False),
    sa.Column("parent", sa.String(64)),
    sa.Column("snapshot", sa.String(64)),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("updated_at", sa.Float, nullable=False),
)
UNITS = sa.Table(
    "featurize_units",
    METADATA,
    sa.Column("job_id", sa.String(64), primary_key=True),
    sa.Column("unit_id", sa.String(64), primary_key=True),
    sa.Column("ordinal", sa.Integer, nullable=False),
    sa.Column("chain_ids", sa.JSON, nullable=False),
    sa.Column("cost", sa.BigInteger, nullable=False),
    sa.Column("state", sa.String(8), nullable=False, index=True),
    sa.Column("attempts", sa.Integer, nullable=False, default=0),
    sa.Column("leased_at", sa.Float),
    sa.Column("num_chains", sa.Integer, nullable=False, default=0),
    sa.Column("shard", sa.JSON),
    sa.Column("notes", sa.JSON),
)
CHAINS = sa.Table(
    "featurize_chains",
    METADATA,
    sa.Column("job_id", sa.String(64), primary_key=True),
    sa.Column("chain_id", sa.String(128), primary_key=True),
    sa.Column("unit_id", sa.String(64), nullable=False),
    sa.Column("strikes", sa.Integer, nullable=False, default=0),
    sa.Column("dead", sa.Boolean, nullable=False),
    sa.Column("type", sa.String(64), nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("path", sa.Text),
    sa.Column("line", sa.Integer),
)
"""Chains that failed (`dead`), and suspects: they killed a worker and will be retried."""
