"""Signals on their way in: which is noted, and which is deadly."""

from __future__ import annotations

import signal

import pytest

from evofeed.trainer.run.telemetry import note_signals


def test_a_second_signal_some_time_later_is_deadly() -> None:
    noted: list[str] = []
    with pytest.raises(KeyboardInterrupt), note_signals(noted.append, together=-1.0):
        signal.raise_signal(signal.SIGINT)  # returns when it has been noted
        signal.raise_signal(signal.SIGINT)
    assert noted == ["SIGINT"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_signals_that_come_together_ask_for_one_thing() -> None:
    noted: list[str] = []
    with note_signals(noted.append, together=1e9):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert noted == ["SIGTERM", "SIGTERM"]
