"""The tables of the database: everything that changes, and nothing that does not.

Chains and manifests stay in the store, which never changes them. Times are
seconds since 1970 (UTC), so SQLite and PostgreSQL agree to the bit.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, ClassVar

from sqlalchemy import JSON, Double, ForeignKey, Index, LargeBinary, String, Text, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

_OfDataset = Annotated[int, mapped_column(ForeignKey("datasets.id", ondelete="CASCADE"))]
_AT_WORK = text("state IN ('running', 'cancelling')")


class Base(DeclarativeBase):
    """Root of the tables."""

    # SQLAlchemy 2.0 and 2.1 differ by themselves.
    type_annotation_map: ClassVar[dict[Any, Any]] = {float: Double()}


class DatasetRow(Base):
    """A dataset registered by name."""

    __tablename__ = "datasets"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(128), unique=True)
    # Names must differ in more than case: some file systems ignore it.
    folded: Mapped[str] = mapped_column(String(128), unique=True)
    uri: Mapped[str] = mapped_column(Text)
    # The URI's location with links resolved. It is unique, so that a token for one dataset reaches
    # no other by a second name.
    place: Mapped[str] = mapped_column(Text, unique=True)
    description: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[float]


class RefPolicy(Base):
    """The conditions for moving a ref, for any caller."""

    __tablename__ = "ref_policies"

    dataset_id: Mapped[_OfDataset] = mapped_column(primary_key=True)
    ref: Mapped[str] = mapped_column(String(128), primary_key=True)
    protected: Mapped[bool] = mapped_column(default=False)
    reviewer: Mapped[str] = mapped_column(String(16), default="publish")
    forbid: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)
    apart_from: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)
    updated_at: Mapped[float]
    principal: Mapped[str] = mapped_column(String(128))


class RefMove(Base):
    """One move of a ref; the last row of a ref is where it points. No digest: it was deleted."""

    __tablename__ = "ref_moves"
    __table_args__ = (Index("ix_ref_moves_ref", "dataset_id", "ref", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    dataset_id: Mapped[_OfDataset]
    ref: Mapped[str] = mapped_column(String(128))
    digest: Mapped[str] = mapped_column(String(64))
    previous: Mapped[str | None] = mapped_column(String(64))
    moved_at: Mapped[float]
    principal: Mapped[str] = mapped_column(String(128))
    job_id: Mapped[str | None] = mapped_column(String(32))
    message: Mapped[str] = mapped_column(Text, default="")


class JobRow(Base):
    """A featurize job: its request and its state."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_state", "state"),
        # One running job per dataset, also if several services share the database.
        Index("uq_jobs_at_work", "dataset_id", unique=True, sqlite_where=_AT_WORK,
              postgresql_where=_AT_WORK),
    )  # fmt: skip

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    dataset_id: Mapped[_OfDataset]
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)
    state: Mapped[str] = mapped_column(String(16))
    attempts: Mapped[int] = mapped_column(default=0)  # runs of its process so far
    deaths: Mapped[int] = mapped_column(default=0)  # consecutive ones without progress
    furthest: Mapped[int] = mapped_column(default=0)  # chains done at the last of them
    progress: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    result: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    error: Mapped[str] = mapped_column(Text, default="")
    log: Mapped[str] = mapped_column(Text, default="")
    message: Mapped[str] = mapped_column(Text, default="")
    retry: Mapped[bool] = mapped_column(default=False)  # run broken chains again
    created_at: Mapped[float]
    updated_at: Mapped[float]
    principal: Mapped[str] = mapped_column(String(128))
    charged_to: Mapped[str] = mapped_column(String(128))  # the principal that moves its ref


class JobChain(Base):
    """A job's message about a chain: `broken`, or a `note` on what was left out."""

    __tablename__ = "job_chains"
    __table_args__ = (Index("ix_job_chains_job", "job_id", "kind", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    kind: Mapped[str] = mapped_column(String(8))
    chain_id: Mapped[str] = mapped_column(Text)
    type: Mapped[str] = mapped_column(Text, default="")
    message: Mapped[str] = mapped_column(Text)
    path: Mapped[str | None] = mapped_column(Text)
    line: Mapped[int | None]


class TokenRow(Base):
    """An API token; only the hash of its secret is kept."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    parent: Mapped[str | None] = mapped_column(String(16))  # the token it was made with
    label: Mapped[str] = mapped_column(String(128))
    secret_sha256: Mapped[bytes] = mapped_column(LargeBinary(32))
    scopes: Mapped[list[str]] = mapped_column(JSON)
    datasets: Mapped[list[str] | None] = mapped_column(JSON)
    roots: Mapped[list[str] | None] = mapped_column(JSON)
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]
    last_used_at: Mapped[float | None]


class AuditRow(Base):
    """Who did what; append-only."""

    __tablename__ = "audit"
    __table_args__ = (Index("ix_audit_at", "at"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float]
    principal: Mapped[str] = mapped_column(String(128))
    action: Mapped[str] = mapped_column(String(64))
    subject: Mapped[str] = mapped_column(String(256))
    detail: Mapped[dict[str, Any]] = mapped_column(JSON)


def record(session: Session, principal: str, action: str, subject: str, **detail: Any) -> None:
    """Add a line to the audit (`noun.verb` on a subject); it is committed with the session.

    `detail` is JSON-ready, and never a secret.
    """
    line = {"principal": principal, "action": action, "subject": subject[:256], "detail": detail}
    session.add(AuditRow(at=time.time(), **line))


class TicketRow(Base):
    """Sequences submitted to a search; `place` identifies the cache of their alignments."""

    __tablename__ = "tickets"
    __table_args__ = (Index("ix_tickets_state", "place", "state"),)

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    place: Mapped[str] = mapped_column(String(64), primary_key=True)
    principal: Mapped[str] = mapped_column(String(128))
    names: Mapped[list[str]] = mapped_column(JSON)  # the numbers that clients gave them
    sequences: Mapped[list[str]] = mapped_column(JSON)
    mode: Mapped[str] = mapped_column(String(40))  # a mode of ColabFold's protocol
    state: Mapped[str] = mapped_column(String(16))
    message: Mapped[str] = mapped_column(Text, default="")
    made_at: Mapped[float]
    taken_at: Mapped[float] = mapped_column(default=0.0)


class SecretRow(Base):
    """Secrets the service makes for itself, such as the key of cursors and cookies."""

    __tablename__ = "secrets"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[bytes] = mapped_column(LargeBinary(32))
