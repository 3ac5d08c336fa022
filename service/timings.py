"""How long the parts of a service wait; a test that cannot wait hands in others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Timings:
    """Seconds.

    Attributes:
        webhook_tick: between two looks for news.
        webhook_waits: before each further attempt at a delivery.
        webhook_lease: a delivery in hand is nobody else's for so long.
        webhook_answer: a receiver may take.
        place_known: where a dataset is need not be asked of the database again.
        unwritten: that nobody has written to the database need not be asked again.
        on_loop: of computing that a question may take on the event loop.
        job_silence: after which a running job's process counts as dead; it speaks every second.
        job_events: between two looks at a job whose events are streamed.
        bucket_answer: a bucket may take for one request.
    """

    webhook_tick: float = 1.0
    webhook_waits: tuple[float, ...] = (10, 60, 300, 1800, 7200, 21_600)
    webhook_lease: float = 60.0
    webhook_answer: float = 10.0
    place_known: float = 1.0
    unwritten: float = 0.05
    on_loop: float = 0.002
    job_silence: float = 60.0
    job_events: float = 0.5
    bucket_answer: float = 10.0


USUAL = Timings()
