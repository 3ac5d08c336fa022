"""The ledger on SQLite and on PostgreSQL: one code path, one behaviour."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.conftest import evofeed
from tests.featurize.job.stage import (
    Digests,
    kill_at_call,
    run,
    run_forked,
    start_driver,
    wait_for,
    wait_until,
)
from tests.service.conftest import postgres_server

from evofeed.base.errors import JobError
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.featurize.job import JobHost, Ledger, lock
from evofeed.featurize.job.units import Plan, Unit
from evofeed.featurize.job.work import UnitResult


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL for this session, on a Unix socket."""
    with postgres_server() as server:
        yield server.url("postgres")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return str(tmp_path / "me@here" / "ledger.sqlite")


def test_a_ledger_that_cannot_be_opened_is_one_line_without_the_password() -> None:
    with pytest.raises(JobError) as caught:
        Ledger("postgresql://me:secret@/none?host=/no/such/folder")
    assert "cannot be opened" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_job_is_driven_by_one_process_at_a_time(url: str, tmp_path: Path) -> None:
    job_id, locked = os.urandom(8).hex(), tmp_path / "held"
    pid = os.fork()
    if not pid:
        code = 1
        try:
            ledger = Ledger(url)
            with lock.driver_lock(ledger, job_id):
                locked.touch()
                signal.pause()
        finally:
            os._exit(code)
    wait_until(locked.exists)
    ledger = Ledger(url)
    with (
        pytest.raises(JobError, match="another process"),
        lock.driver_lock(ledger, job_id, lambda s: s < 0.2),
    ):
        pass
    os.kill(pid, signal.SIGKILL)
    assert wait_for(pid) == -signal.SIGKILL
    with lock.driver_lock(ledger, job_id, lambda s: s < 240):  # the death of the holder opens it
        pass
    ledger.close()


def test_a_retry_takes_dead_chains_and_suspects_back_at_once(url: str) -> None:
    ledger, job_id = Ledger(url), os.urandom(8).hex()
    units = [Unit(f"{job_id}-{name}", (name,), 1, 1) for name in ("dead", "suspect", "good")]
    plan = Plan("", tuple(units), {name: ChainSource(name) for name in ("a", "b", "c")}, {})
    where = {"input_uri": "raw", "dataset_uri": "data", "arguments": {}}
    ledger.begin(job_id, plan, where, None)
    good = {"shard": {}, "num_chains": 1, "failures": (), "notes": {}}
    ledger.finish(job_id, UnitResult(unit_id=units[2].unit_id, **good))
    for unit, limit in zip(units[:2], (1, 2), strict=True):
        failure = {"chain_id": unit.chain_ids[0], "type": "WorkerKilled", "message": ""}
        ledger.strike(job_id, unit.unit_id, {**failure, "path": None, "line": None}, limit)
    writes = []
    sa.event.listen(ledger.engine, "commit", writes.append)
    ledger.retry(job_id)
    assert len(writes) == 1
    assert ledger.chains(job_id, dead=None) == []
    assert [unit["state"] for unit in ledger.units(job_id)] == ["todo", "todo", "done"]
    assert ledger.job(job_id).message == "to be retried"
    ledger.close()


def test_an_interrupted_query_is_not_a_fault_of_the_ledger(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    ledger = Ledger(url)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(ledger.engine.dialect, "do_execute", interrupted)
        ledger.jobs()
    ledger.jobs()
    ledger.close()


def test_status_says_how_often_and_since_when_a_unit_is_in_work(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "ledger.sqlite"))
    plan = Plan("", (Unit("u", ("1abc_A", "2abc_A"), 1, 1),), {"1abc_A": ChainSource("")}, {})
    ledger.begin("job", plan, {"input_uri": "raw", "dataset_uri": "data", "arguments": {}}, None)
    ledger.lease("job", "u")
    ledger.requeue("job", "u")
    ledger.lease("job", "u")
    output = evofeed("jobs", "status", ledger.location, "--job", "job").out
    assert re.search(r"in work 1abc_A, first of 2: attempt 2, begun \d+ s ago\n", output), output
    ledger.close()


def test_a_job_with_its_ledger_in_postgresql_survives_its_driver(
    raw: Path, tmp_path: Path, undisturbed: Digests, postgres_url: str
) -> None:
    def act() -> Any:
        die = partial(kill_at_call, Ledger, "finish", "after", 3, tmp_path / "mark")
        pid = start_driver(raw, tmp_path / "data", die, ledger=postgres_url)
        assert wait_for(pid) == -signal.SIGKILL
        # until PostgreSQL has seen that its client is gone
        host = JobHost(waits=lambda seconds: seconds < 240)
        return run(raw, tmp_path / "data", ledger=postgres_url, host=host)

    report = run_forked(act)
    assert report.snapshot == undisturbed.snapshot
    assert report.resumed == 3
    assert not (tmp_path / "data" / "jobs" / "ledger.sqlite").exists()
