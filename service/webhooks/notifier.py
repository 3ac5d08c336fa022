"""Webhooks: who wants to hear what happens, and the threads that tell them.

Messages follow the Standard Webhooks convention, so receivers need no code of
ours to check them: `webhook-id`, `webhook-timestamp` and `webhook-signature`,
an HMAC-SHA256 over id, time and body. Each is sent at least once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from evofeed.errors import ServiceError
from evofeed.service.access.audit import record
from evofeed.service.database.database import Database
from evofeed.service.database.tables import DeliveryRow, RefMove, TokenRow, WebhookRow
from evofeed.service.timings import USUAL, Timings
from evofeed.service.webhooks.news import News, news_for
from evofeed.service.webhooks.outbound import check_url, post

_log = logging.getLogger("evofeed.service")
_SENDERS: Final = 16  # webhooks sent to at once; each gets one delivery at a time


def add_webhook(
    database: Database,
    url: str,
    datasets: list[str] | None,
    principal: str,
    events: list[str] | None = None,
) -> tuple[WebhookRow, str]:
    """Register a URL (checked before); the row and the secret its messages are signed with.

    Args:
        database: where it is kept.
        url: where to.
        datasets: of which; None for all.
        principal: whose it is; it falls silent when that token ends.
        events: of `webhook_news.Event`; None for the ends of jobs.
    """
    key = secrets.token_bytes(32)
    row = WebhookRow(
        id=secrets.token_hex(8),
        url=url,
        secret=key,
        datasets=datasets,
        events=events,
        principal=principal,
        created_at=time.time(),
        disabled="",
    )
    with database.write() as session:
        row.after_move = session.scalar(select(func.max(RefMove.id))) or 0
        session.add(row)
        record(session, principal, "webhook.create", row.id, url=url.partition("?")[0])
        session.flush()
        session.expunge(row)
    return row, f"whsec_{base64.b64encode(key).decode()}"


def signature(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """The `webhook-signature` of a message."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return f"v1,{base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()}"


def enter(database: Database, webhook_id: str, news: News) -> DeliveryRow | None:
    """Write down a message that is to be sent; None: another service was first."""
    delivery = DeliveryRow(
        id=f"msg_{secrets.token_hex(12)}",
        webhook_id=webhook_id,
        subject=news.subject,
        at=news.at,
        body=news.body,
        attempts=0,
        due_at=time.time(),
        outcome="",
    )
    try:
        with database.write() as session:
            session.add(delivery)
            session.flush()
            session.expunge(delivery)
    except IntegrityError:
        return None
    return delivery


def send_again(database: Database, webhook_id: str, delivery_id: str) -> DeliveryRow | None:
    """Have a message sent once more, with the same id; None: the webhook has none of that id."""
    with database.write() as session:
        row = session.get(DeliveryRow, delivery_id, with_for_update=True)
        if row is None or row.webhook_id != webhook_id:
            return None
        row.due_at, row.attempts, row.outcome = time.time(), 0, ""
        session.flush()
        session.expunge(row)
    return row


class Notifier:
    """A thread that looks for news, and a few more that tell those who asked.

    Each webhook has a thread of its own while there is something to tell, so a slow one
    delays no other.

    Args:
        database: jobs, webhooks and deliveries.
        allowed: hosts that may be sent to; with none there is no thread.
        timings: how often it looks and tries, and how long it waits for an answer.
    """

    def __init__(
        self, database: Database, allowed: tuple[str, ...], timings: Timings = USUAL
    ) -> None:
        self._database, self._allowed, self._timings = database, allowed, timings
        self._stop = threading.Event()
        self._busy: set[str] = set()  # webhooks that are being sent to
        self._thread = threading.Thread(target=self._run, name="evofeed-webhooks", daemon=True)

    def start(self) -> None:
        """Begin to tell."""
        if self._allowed:
            self._thread.start()

    def close(self) -> None:
        """Stop; what was not delivered is the next service's."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        away = False
        with ThreadPoolExecutor(_SENDERS, thread_name_prefix="evofeed-webhook") as senders:
            while not self._stop.wait(self._timings.webhook_tick):
                try:
                    self.collect()
                    for hook in self._due() - self._busy:
                        self._busy.add(hook)
                        senders.submit(self._tell, hook)
                    away = False
                except DBAPIError as error:
                    if not away:  # once, not every second for as long as it is away
                        _log.error("webhooks wait for the database: %s", error.orig)
                    away = True
                except Exception:  # whatever it was, this thread must not die of it
                    _log.exception("webhooks cannot be served now; trying again")

    def _due(self) -> set[str]:
        """Webhooks with a delivery due now."""
        due = select(DeliveryRow.webhook_id).where(DeliveryRow.due_at <= time.time()).distinct()
        with self._database.read() as session:
            return set(session.scalars(due))

    def _tell(self, hook_id: str) -> None:
        try:
            while not self._stop.is_set() and self.deliver(hook_id):
                pass
        except Exception:  # the next round tries again
            _log.exception("webhook %s cannot be served now; trying again", hook_id)
        finally:
            self._busy.discard(hook_id)

    def collect(self) -> None:
        """Write down a delivery for whatever a webhook has not been sent."""
        with self._database.read() as session:
            hooks = session.scalars(select(WebhookRow).where(WebhookRow.disabled == "")).all()
            for hook in hooks:
                if not self._is_silent(hook):
                    for news in news_for(session, hook):
                        enter(self._database, hook.id, news)

    def _is_silent(self, hook: WebhookRow) -> bool:
        """True if the token it belongs to is no longer good."""
        with self._database.read() as session:
            token = session.get(TokenRow, hook.principal)
        if token is None:
            return False  # made without tokens
        expired = token.expires_at is not None and token.expires_at <= time.time()
        return token.revoked_at is not None or expired

    def deliver(self, hook_id: str) -> bool:
        """Make a webhook's attempt that is due first; False if none is."""
        now = time.time()
        due = (
            select(DeliveryRow)
            .where(DeliveryRow.webhook_id == hook_id, DeliveryRow.due_at <= now)
            .order_by(DeliveryRow.due_at)
            .limit(1)
        )
        with self._database.write() as session:
            row = session.scalar(due.with_for_update(skip_locked=True))
            if row is None:
                return False
            row.due_at, row.attempts = now + self._timings.webhook_lease, row.attempts + 1
            hook = session.get_one(WebhookRow, row.webhook_id)
            session.flush()
            session.expunge_all()
        outcome, status = self._send(hook, row)
        with self._database.write() as session:
            kept = session.get(DeliveryRow, row.id, with_for_update=True)
            if kept is None:  # the webhook was removed meanwhile
                return True
            kept.outcome = outcome
            waits = self._timings.webhook_waits
            last = status // 100 == 2 or status == 410 or row.attempts > len(waits)
            kept.due_at = None if last else time.time() + waits[row.attempts - 1]
            if status == 410 and (gone := session.get(WebhookRow, hook.id)):
                gone.disabled = outcome
        return True

    def _send(self, hook: WebhookRow, row: DeliveryRow) -> tuple[str, int]:
        """Outcome in words and the status, 0 where there was none."""
        body = json.dumps(row.body).encode()
        timestamp = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "evofeed",
            "webhook-id": row.id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature(hook.secret, row.id, timestamp, body),
        }
        if hook.disabled or self._is_silent(hook):
            return "not sent: the webhook or its token is no longer good", 410
        try:
            # Checked again each time: the list may have changed, and so may the name's address.
            target = check_url(hook.url, self._allowed)
            status = post(target, body, headers, seconds=self._timings.webhook_answer)
        except ServiceError as error:
            return error.message, 0
        return f"answered {status}", status
