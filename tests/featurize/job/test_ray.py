"""The job on Ray: the same bytes, and the same after whatever is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.job.stage import (
    checksums,
    descendants,
    hold_still,
    on_stage,
    run,
    start_driver,
    wait_for,
    wait_for_silence,
    wait_until,
)

from evofeed.base.errors import JobError
from evofeed.featurize import discover
from evofeed.featurize.job import JobReport, Ledger, driver, ray_executor
from evofeed.featurize.job import run as beginning
from evofeed.featurize.job.ray_executor import RayExecutor
from evofeed.featurize.job.work import expected_memory
from evofeed.store import Dataset

pytestmark = [pytest.mark.system]

ACTOR = """
import os, signal, time
from dataclasses import dataclass
from evofeed.featurize.job.worker import Worker
from evofeed.featurize.inputs.sources import ChainSource

@dataclass(frozen=True, slots=True)
class Actor(ChainSource):
    act: str = ""

    def structure_ref(self):
        if not os.environ.get("PLANNING"):
            if self.act == "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            if self.act == "crash its watcher":
                os.kill(os.getppid(), signal.SIGKILL)
                time.sleep(1000)
            while self.act == "hang" or (self.act and not os.path.exists(self.act)):
                time.sleep(0.02)
        return ChainSource.structure_ref(self)
"""
"""Chains that crash or hang whoever takes them in hand, or wait until there is a file."""


def on_ray(raw: Path, dataset: Path, **changes: Any) -> JobReport:
    return run(raw, dataset, **{"executor": "ray", "workers": 2, **changes})


def named(pid: int, word: str) -> list[int]:
    """Descendants of a process whose command line has this word."""
    found = []
    for each in descendants(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if word in Path(f"/proc/{each}/cmdline").read_text():
                found.append(each)
    return found


@pytest.fixture
def ray_folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the Rays that a test starts lie, and no others; short, for sockets are below."""
    with tempfile.TemporaryDirectory(prefix="ef-", dir="/tmp") as folder:
        monkeypatch.setattr(ray_executor, "_TEMP", folder)
        yield Path(folder)


@pytest.fixture
def actors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's workers find the chains that do as they are asked."""
    (tmp_path / "evofeed_test_actor.py").write_text(ACTOR)
    monkeypatch.syspath_prepend(str(tmp_path))


def is_empty(folder: Path) -> bool:
    return not list(folder.iterdir())


@pytest.fixture
def no_token_file() -> Iterator[None]:
    """A Ray that a job starts leaves no token in the home folder."""
    token = Path.home() / ".ray" / "auth_token"
    before = token.exists()
    yield
    assert token.exists() == before


@pytest.mark.parametrize("server", ["", "raylet/raylet", "gcs/gcs_server"])
def test_a_lost_worker_costs_time_and_a_lost_ray_ends_the_job_until_it_is_run_again(
    raw: Path,
    tmp_path: Path,
    honest: tuple[str, dict[str, int]],
    actors: None,
    no_token_file: None,
    ray_folders: Path,
    server: str,
) -> None:
    """Once something is done: a worker, a Ray worker, and then a server of this Ray."""
    printed, dataset = tmp_path / "printed", tmp_path / "killed"
    enough = dataset.with_suffix(".enough")  # the job cannot be over before
    held = discover(str(raw))[2].chain_id
    victims = ["worker.main", "ray::unit_on_ray", *([server] if server else [])]
    killed: list[str] = []

    def kill_next(progress: Any) -> None:
        if len(killed) == len(victims):
            enough.touch()
        elif progress.good and (alive := named(os.getpid(), victims[len(killed)])):
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(alive[0], signal.SIGKILL)
                killed.append(victims[len(killed)])

    def act() -> tuple[JobReport, str | None]:
        with printed.open("wb") as file:  # whatever Ray writes, past `sys.stdout` too
            os.dup2(file.fileno(), 1)
        sys.stdout = os.fdopen(1, "w", buffering=1)
        report = with_actors(raw, dataset, {held: str(enough)}, progress=kill_next)
        assert killed == victims
        # Again without Ray: the ledger does not mind.
        return report, run(raw, dataset).snapshot if server else report.snapshot

    report, snapshot = on_stage(act)
    assert report.state == ("failed" if server else "published")
    if server:
        name = "raylet" if "raylet" in server else "GCS"
        assert f"the Ray of this job is gone: its {name} does not answer" in report.message
        assert report.message.endswith("what is done is kept: run it again")
    assert snapshot == honest[0]
    assert printed.read_bytes() == b"", "standard output is for the report"
    assert server or is_empty(ray_folders)


def test_a_worker_killed_while_ray_starts_is_no_long_wait(
    raw: Path, tmp_path: Path, honest: tuple[str, Any]
) -> None:
    """The first worker that this Ray starts is killed as soon as it is there."""

    def act() -> JobReport:
        me, killed = os.getpid(), []

        def kill() -> None:
            while not killed:
                for pid in set(named(me, "default_worker.py")) - set(killed):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                time.sleep(0.02)

        threading.Thread(target=kill, daemon=True).start()
        report = on_ray(raw, tmp_path / "data")
        assert killed
        return report

    report = on_stage(act)
    assert report.snapshot == honest[0]
    assert report.seconds < 150.0  # two starts that a busy machine had no time for among them


def test_chains_that_crash_hang_or_kill_their_watcher_are_quarantined_on_ray_too(
    raw: Path, tmp_path: Path, honest: tuple[str, dict[str, int]], actors: None, ray_folders: Path
) -> None:
    sources = discover(str(raw))
    names = {4: "crash", 9: "hang", 11: "crash its watcher"}
    acts = {sources[k].chain_id: act for k, act in names.items()}
    dataset = tmp_path / "poisoned"
    report = on_stage(lambda: with_actors(raw, dataset, acts, deadline=9.0, max_broken=0.5))
    found = {item["chain_id"]: (item["type"], item["message"]) for item in report.broken}
    assert {chain_id: kind for chain_id, (kind, _) in found.items()} == dict.fromkeys(
        acts, "WorkerKilled"
    )
    messages = [found[sources[k].chain_id][1] for k in names]
    assert "signal SIGSEGV" in messages[0]
    assert "took longer than 9 s" in messages[1]
    assert "WorkerCrashedError" in messages[2]
    assert checksums(dataset) == {k: v for k, v in honest[1].items() if k not in acts}


def test_units_ask_a_ray_of_the_callers_own_for_memory_and_leave_it_running(
    raw: Path, tmp_path: Path, honest: tuple[str, Any], actors: None
) -> None:
    held = discover(str(raw))[2].chain_id
    seen = tmp_path / "seen"

    def act() -> JobReport:
        import ray

        def look(progress: Any) -> None:
            whole, left = ray.cluster_resources(), ray.available_resources()
            if whole["memory"] - left.get("memory", 0) >= expected_memory(0, 0):
                seen.touch()

        with a_cluster(nodes=1) as cluster:
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            report = with_actors(raw, tmp_path / "data", {held: str(seen)}, progress=look)
            assert ray.cluster_resources()["CPU"] == 2
            ray.shutdown()
        return report

    assert on_stage(act).snapshot == honest[0]


def with_actors(raw: Path, dataset: Path, acts: dict[str, str], **changes: Any) -> JobReport:
    """A job in which some chains do as they are asked."""
    from evofeed_test_actor import Actor  # type: ignore[import-not-found]

    def actors(uri: str, **places: Any) -> list[Any]:
        return [
            Actor(**_fields(source), act=acts.get(source.chain_id, ""))
            for source in discover(uri, **places)
        ]

    def planning(function: Any) -> Any:
        def harmlessly(*args: Any) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("PLANNING", "1")
                return function(*args)

        return harmlessly

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beginning, "discover", actors)
        patch.setattr(beginning, "make_plan", planning(beginning.make_plan))
        patch.setattr(driver.Driver, "_changed", planning(driver.Driver._changed))
        return on_ray(raw, dataset, **changes)


def test_a_driver_killed_under_ray_is_taken_up_by_the_next(
    raw: Path, tmp_path: Path, honest: tuple[str, Any]
) -> None:
    def act() -> JobReport:
        def hold() -> None:  # at its first outcome, with Ray at work
            hold_still(tmp_path / "mark", Ledger, "finish")

        pid = start_driver(raw, tmp_path, hold, executor="ray")
        wait_until(lambda: list(tmp_path.glob("shards/*.arrow")))
        os.kill(pid, signal.SIGKILL)
        assert wait_for(pid) == -signal.SIGKILL
        wait_for_silence()
        return run(raw, tmp_path)  # without Ray: the ledger does not mind

    assert on_stage(act).snapshot == honest[0]


def _fields(source: Any) -> dict[str, Any]:
    return {name: getattr(source, name) for name in type(source).__dataclass_fields__}


@contextlib.contextmanager
def a_cluster(nodes: int) -> Iterator[Any]:
    """A Ray cluster in processes below this one: two cores in its head, one in each other node."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    Path("/tmp/ray").mkdir(exist_ok=True)  # Ray's own helper writes there
    small = {"num_cpus": 1, "object_store_memory": 128 << 20}
    with tempfile.TemporaryDirectory(
        prefix="ef-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        head = {**small, "num_cpus": 2, "include_dashboard": False, "temp_dir": folder}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(nodes - 1):
            cluster.add_node(**small)
        try:
            yield cluster
        finally:
            cluster.shutdown()


def test_a_lost_node_costs_time_only_and_a_lost_cluster_fails_the_job_and_buries_nothing(
    raw: Path,
    tmp_path: Path,
    honest: tuple[str, Any],
    actors: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """First the second node dies, then the GCS; then it is run again without any Ray."""
    monkeypatch.setattr(ray_executor, "RayExecutor", partial(RayExecutor, gcs_away=2.0))
    last = tmp_path / "never"
    held = discover(str(raw))[2].chain_id

    def act() -> tuple[JobReport, JobReport]:
        with a_cluster(nodes=2) as cluster:
            gone: list[str] = []

            def lose(progress: Any) -> None:
                if progress.good and not gone:
                    (node,) = cluster.worker_nodes
                    cluster.remove_node(node, allow_graceful=False)
                    gone.append("node")
                if progress.good >= 10 and len(gone) == 1:
                    os.kill(named(os.getpid(), "gcs/gcs_server")[0], signal.SIGKILL)
                    gone.append("GCS")

            failed = with_actors(
                raw,
                tmp_path / "data",
                {held: str(last)},
                ray_address=cluster.address,
                workers=0,
                progress=lose,
                max_broken=1.0,
            )
            assert gone == ["node", "GCS"]
        return failed, run(raw, tmp_path / "data")

    failed, repaired = on_stage(act)
    assert (failed.exit_code, failed.num_good, failed.broken) == (1, 10, ())
    assert "its GCS does not answer any more" in failed.message
    assert "run it again once it is there again" in failed.message
    assert repaired.snapshot == Dataset.open(str(tmp_path / "data")).digest == honest[0]


def test_a_ray_that_does_not_start_is_a_clear_error_and_a_long_wait_is_mentioned(
    ray_folders: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import ray

    def init(**_: Any) -> None:
        time.sleep(0.3)
        raise RuntimeError("the node timed out\nand more")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(JobError, match=r"cannot start Ray: the node timed out; .*--executor local"):
        RayExecutor(2, 60.0, silence=0.05)
    assert "still waiting: this process starts Ray" in caplog.text
    assert is_empty(ray_folders), "nothing of it is left"


def test_a_cluster_that_is_not_there_is_reported_at_once(ray_folders: Path) -> None:
    import ray

    with socket.socket() as taken:  # bound and not listening: nobody else gets the port meanwhile
        taken.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*taken.getsockname())
        with pytest.raises(JobError, match=rf"cannot join Ray at {address}: nothing answers"):
            RayExecutor(2, 60.0, address)
    assert not ray.is_initialized()
