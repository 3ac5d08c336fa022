"""The ledger on SQLite and on PostgreSQL: one code path, one behaviour."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.job.stage import (
    arm,
    on_stage,
    run,
    small_units,
    start_driver,
    wait_for,
    wait_until,
)
from tests.service.conftest import postgres_server

from evofeed.base.errors import JobError
from evofeed.featurize import FeaturizeConfig, discover
from evofeed.featurize.job import JobHost, Ledger, lock
from evofeed.featurize.job.inputs import Stamp
from evofeed.featurize.job.units import Plan, make_plan
from evofeed.featurize.job.work import UnitResult


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL of this session's own, on a Unix socket."""
    with postgres_server() as server:
        yield server.url("postgres")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return str(tmp_path / "ledger.sqlite")


@pytest.fixture
def plan(raw: Path) -> Plan:
    """Units of this test's own: a job takes over those that others have done."""
    with small_units():
        plan = make_plan(discover(str(raw)), FeaturizeConfig(), None)
    mark = os.urandom(8).hex()
    own = (dataclasses.replace(unit, unit_id=mark + unit.unit_id[16:]) for unit in plan.units)
    return dataclasses.replace(plan, units=tuple(own))


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    made = Ledger(url)
    yield made
    made.close()


def _begin(ledger: Ledger, plan: Plan, dataset: str = "") -> str:
    """The id of a new job."""
    job_id = os.urandom(8).hex()
    where: dict[str, Any] = {"input_uri": "raw", "dataset_uri": dataset or job_id, "arguments": {}}
    ledger.begin(job_id, plan, where, None)
    return job_id


def _result(unit_id: str, broken: tuple[str, ...] = (), shard: str = "") -> UnitResult:
    failures = tuple(_failure(c) | {"type": "MsaError", "path": "a", "line": 3} for c in broken)
    return UnitResult(
        unit_id=unit_id, shard={"name": shard or unit_id}, num_chains=3, failures=failures,
        notes={}, inputs={},
    )  # fmt: skip


def _failure(chain_id: str) -> dict[str, Any]:
    about = {"type": "WorkerKilled", "message": "bad", "path": None, "line": None}
    return {"chain_id": chain_id, **about}


def test_units_go_from_todo_to_done_and_leases_of_the_dead_come_back(url: str, plan: Plan) -> None:
    ledger = Ledger(url)
    job_id = _begin(ledger, plan)
    first, second, *_ = (unit.unit_id for unit in plan.units)
    ledger.lease(job_id, first)
    ledger.lease(job_id, second)
    ledger.finish(job_id, _result(first, broken=(plan.units[0].chain_ids[0],)))
    assert [u["unit_id"] for u in ledger.units(job_id, "leased")] == [second]
    ledger.close()
    again = Ledger(url)  # its driver died; the next one begins
    again.begin(job_id, plan, {"input_uri": "raw", "dataset_uri": job_id, "arguments": {}}, None)
    counts = again.counts(job_id)
    assert (counts["units_todo"], counts["units_leased"], counts["units_done"]) == (5, 0, 1)
    assert (counts["chains_good"], counts["chains_broken"]) == (3, 1)
    (broken,) = again.chains(job_id)
    assert (broken["message"], broken["path"], broken["line"]) == ("bad", "a", 3)
    assert again.job(job_id[:6]).job_id == job_id, "found by the beginning of its id"
    with pytest.raises(JobError, match="unknown job"):
        again.job("no such")
    again.close()


def test_strikes_add_up_and_the_last_one_is_final(ledger: Ledger, plan: Plan) -> None:
    job_id = _begin(ledger, plan)
    unit = plan.units[0]
    suspect, victim = unit.chain_ids
    assert not ledger.strike(job_id, unit.unit_id, _failure(suspect), 2)
    assert not ledger.strike(job_id, unit.unit_id, _failure(victim), 2)
    assert ledger.strike(job_id, unit.unit_id, _failure(victim), 2)
    assert [c["chain_id"] for c in ledger.chains(job_id, dead=False)] == [suspect]
    ledger.finish(job_id, _result(unit.unit_id))
    assert [c["chain_id"] for c in ledger.chains(job_id, dead=None)] == [victim], "acquitted"


def test_a_new_job_takes_over_finished_units_those_of_its_dataset_first(
    ledger: Ledger, plan: Plan
) -> None:
    old, other = (os.urandom(8).hex() for _ in range(2))
    for k, dataset in enumerate((old, other)):
        job_id = _begin(ledger, plan, dataset)
        for unit in plan.units[: 2 + k]:
            broken = unit.chain_ids[:1] if unit == plan.units[1] else ()
            ledger.finish(job_id, _result(unit.unit_id, broken, shard=f"{dataset} {k}"))
    new = _begin(ledger, plan, old)
    taken = {u["unit_id"]: u["shard"]["name"] for u in ledger.units(new, "done")}
    assert taken[plan.units[0].unit_id] == f"{old} 0"
    assert taken[plan.units[2].unit_id] == f"{other} 1"  # the driver sees whether it is there
    assert plan.units[1].unit_id not in taken


def test_inputs_and_homes_of_units_are_kept(ledger: Ledger, plan: Plan) -> None:
    job_id = _begin(ledger, plan)
    first, second, *_ = (unit.unit_id for unit in plan.units)
    key, stamp = next(iter(plan.inputs.items()))
    read = dataclasses.replace(stamp, sha256="ab" * 32)
    ledger.finish(job_id, _result(first), {f"{job_id} {key}": read})
    ledger.finish(job_id, _result(second))
    assert ledger.inputs()[f"{job_id} {key}"] == read
    later = dataclasses.replace(read, mtime_ns=7)
    ledger.set_inputs({f"{job_id} {key}": later})
    assert ledger.inputs()[f"{job_id} {key}"] == later
    ledger.set_home(job_id, [first, second], {"name": "both", "of": "x"})
    shards = {unit["unit_id"]: unit["shard"] for unit in ledger.units(job_id, "done")}
    assert shards[first] == {"name": first, "home": {"name": "both", "of": "x"}}
    assert shards[second]["home"]["name"] == "both"


def test_two_drivers_may_enter_the_same_inputs_at_the_same_time(url: str) -> None:
    mark = os.urandom(8).hex()
    stamps = [{f"{mark} {k}": Stamp("1 2", 1, job, "cd" * 32) for k in range(50)} for job in (3, 4)]

    def drive(mine: dict[str, Stamp]) -> None:
        ledger = Ledger(url)
        for _ in range(10):
            ledger.set_inputs(dict(reversed(mine.items())))
        ledger.close()

    Ledger(url).close()  # the tables are there
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(drive, stamps))
    ledger = Ledger(url)
    found = {key: stamp for key, stamp in ledger.inputs().items() if key.startswith(mark)}
    ledger.close()
    assert found in stamps


def test_a_ledger_that_cannot_be_opened_is_one_line_without_the_password() -> None:
    with pytest.raises(JobError) as caught:
        Ledger("postgresql://me:secret@/none?host=/no/such/folder")
    assert "cannot be opened" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_job_is_driven_by_one_process_at_a_time(url: str, tmp_path: Path) -> None:
    job_id, held = os.urandom(8).hex(), tmp_path / "held"
    pid = os.fork()
    if not pid:
        code = 1
        try:
            ledger = Ledger(url)
            with lock.driving(ledger, job_id):
                held.touch()
                signal.pause()
        finally:
            os._exit(code)
    wait_until(held.exists)
    ledger = Ledger(url)
    with (
        pytest.raises(JobError, match="another process"),
        lock.driving(ledger, job_id, lambda s: s < 0.2),
    ):
        pass
    os.kill(pid, signal.SIGKILL)
    assert wait_for(pid) == -signal.SIGKILL
    with lock.driving(ledger, job_id, lambda s: s < 240):  # the death of the holder opens it
        pass
    ledger.close()


def test_a_job_with_its_ledger_in_postgresql_survives_its_driver(
    raw: Path, tmp_path: Path, honest: tuple[str, Any], postgres_url: str
) -> None:
    def act() -> Any:
        mark = tmp_path / "mark"
        pid = start_driver(
            raw,
            tmp_path / "data",
            lambda: arm(Ledger, "finish", "after", 3, mark),
            ledger=postgres_url,
        )
        assert wait_for(pid) == -signal.SIGKILL
        # until PostgreSQL has seen that its client is gone
        patient = JobHost(waits=lambda seconds: seconds < 240)
        return run(raw, tmp_path / "data", ledger=postgres_url, host=patient)

    report = on_stage(act)
    assert report.snapshot == honest[0]
    assert report.resumed == 3
    assert not (tmp_path / "data" / "jobs" / "ledger.sqlite").exists()
