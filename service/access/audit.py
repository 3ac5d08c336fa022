"""Who did what: written in the same transaction as the deed."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy.orm import Session

from evofeed.service.database.tables import AuditRow


def record(session: Session, principal: str, action: str, subject: str, **detail: Any) -> None:
    """Add a line to the audit; it is committed with the session's transaction.

    Args:
        session: an open write session.
        principal: token id, or `local`.
        action: `noun.verb`.
        subject: what was acted on: a dataset, `dataset/ref`, a job, a token.
        detail: JSON-ready values worth keeping; never a secret.
    """
    session.add(
        AuditRow(
            at=time.time(),
            principal=principal,
            action=action,
            subject=subject[:256],
            detail=detail,
        )
    )
