"""The job on Ray: the same bytes, and the same after whatever is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
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

from evofeed.errors import JobError
from evofeed.featurize import discover
from evofeed.featurize.job import JobReport, Ledger, driver, ray_executor
from evofeed.featurize.job.ray_executor import RayExecutor
from evofeed.featurize.job.work import expected_memory
from evofeed.store import Dataset

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ACTOR = """
import os, signal, time
from dataclasses import dataclass
from evofeed.featurize.job.worker import Worker
from evofeed.featurize.sources import ChainSource

@dataclass(frozen=True, slots=True)
class Actor(ChainSource):
    act: str = ""

    def structure_ref(self):
        if not os.environ.get("PLANNING"):
            if self.act == "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            while self.act == "hang" or (self.act and not os.path.exists(self.act)):
                time.sleep(0.02)
        return ChainSource.structure_ref(self)

# Whoever watches a worker is sent its chains, so he comes here: he shall hurry only who hangs.
honest = Worker.enforce

def enforce(worker, deadline):
    hangs = any(s.act == "hang" and s.chain_id == worker.chain_id for s in worker.task.sources)
    honest(worker, deadline if hangs else 3600.0)

Worker.enforce = enforce
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
    """Where the private Rays of a test lie, and no others; short, for sockets are below."""
    with tempfile.TemporaryDirectory(prefix="ef-", dir="/tmp") as folder:
        monkeypatch.setattr(ray_executor, "_TEMP", folder)
        yield Path(folder)


def is_empty(folder: Path) -> bool:
    return not list(folder.iterdir())


@pytest.fixture
def no_token_file() -> Iterator[None]:
    """A private Ray leaves no token in the home folder."""
    token = Path.home() / ".ray" / "auth_token"
    before = token.exists()
    yield
    assert token.exists() == before


def test_ray_gives_the_snapshot_of_local_processes_whatever_dies_and_leaves_nothing_behind(
    raw: Path,
    tmp_path: Path,
    honest: tuple[str, dict[str, int]],
    no_token_file: None,
    ray_folders: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three jobs on one private Ray, for starting it is what takes the time."""
    (tmp_path / "evofeed_test_actor.py").write_text(ACTOR)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    sources = discover(str(raw))
    held = sources[2].chain_id
    acts = {sources[4].chain_id: "crash", sources[9].chain_id: "hang"}

    def act() -> list[JobReport]:
        with contextlib.closing(RayExecutor(2, 60.0)):  # jobs find it running and leave it so
            return [
                undisturbed(raw, tmp_path / "quiet", held),
                with_kills(raw, tmp_path / "killed", held),
                with_poison(raw, tmp_path / "poisoned", acts),
            ]

    quiet, killed, poisoned = on_stage(act)
    wait_until(lambda: is_empty(ray_folders))
    assert quiet.snapshot == killed.snapshot == honest[0]
    assert killed.lost_workers >= 1, "and nobody was blamed"
    assert {item["chain_id"]: item["type"] for item in poisoned.broken} == dict.fromkeys(
        acts, "WorkerKilled"
    )
    kept = {k: v for k, v in honest[1].items() if k not in acts}
    assert checksums(tmp_path / "poisoned") == kept


def undisturbed(raw: Path, dataset: Path, held: str) -> JobReport:
    """Nothing dies; while units are in work, Ray has less memory to give than there is."""
    import ray

    seen = dataset.with_suffix(".seen")

    def look(progress: Any) -> None:
        whole, left = ray.cluster_resources(), ray.available_resources()
        if whole["memory"] - left.get("memory", 0) >= expected_memory(0, 0):
            seen.touch()

    return with_actors(raw, dataset, {held: str(seen)}, progress=look)


def with_kills(raw: Path, dataset: Path, held: str) -> JobReport:
    """Three workers die, in turn ours and Ray's; the job cannot be over before."""
    killed: list[int] = []
    enough = dataset.with_suffix(".enough")

    def kill_one(progress: Any) -> None:
        word = ("worker.main", "ray::unit_on_ray")[len(killed) % 2]
        alive = named(os.getpid(), word)
        if len(killed) < 3 and alive:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(alive[0], signal.SIGKILL)
                killed.append(alive[0])
        if len(killed) == 3:
            enough.touch()

    return with_actors(raw, dataset, {held: str(enough)}, progress=kill_one)


def with_poison(raw: Path, dataset: Path, acts: dict[str, str]) -> JobReport:
    """Some chains crash or hang whoever takes them in hand."""
    return with_actors(raw, dataset, acts, deadline=4.0, max_broken=0.5)


def with_actors(raw: Path, dataset: Path, acts: dict[str, str], **changes: Any) -> JobReport:
    """A job in which some chains do as they are told."""
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
        patch.setattr(driver, "discover", actors)
        patch.setattr(driver, "make_plan", planning(driver.make_plan))
        patch.setattr(driver._Driver, "_changed", planning(driver._Driver._changed))
        return on_ray(raw, dataset, **changes)


def test_a_driver_killed_under_ray_is_taken_up_by_the_next(
    raw: Path, tmp_path: Path, honest: tuple[str, Any], ray_folders: Path
) -> None:
    def act() -> JobReport:
        def hold() -> None:  # at its first outcome, with Ray at work
            hold_still(tmp_path / "mark", Ledger, "finish")

        pid = start_driver(raw, tmp_path, hold, executor="ray")
        wait_until(lambda: list(tmp_path.glob("shards/*.arrow")))
        assert not is_empty(ray_folders)
        os.kill(pid, signal.SIGKILL)
        assert wait_for(pid) == -signal.SIGKILL
        wait_for_silence()
        wait_until(lambda: is_empty(ray_folders))  # by the guardian
        return run(raw, tmp_path)  # without Ray: the ledger does not mind

    assert on_stage(act).snapshot == honest[0]


def _fields(source: Any) -> dict[str, Any]:
    return {name: getattr(source, name) for name in type(source).__dataclass_fields__}


def test_a_node_lost_from_a_cluster_costs_time_and_nothing_else(
    raw: Path, tmp_path: Path, honest: tuple[str, Any]
) -> None:
    def act() -> JobReport:
        from ray.cluster_utils import Cluster

        os.environ["RAY_AUTH_MODE"] = "disabled"
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        Path("/tmp/ray").mkdir(exist_ok=True)  # Ray's own helper writes there
        folder = Path("/tmp") / f"evofeed-cluster-{os.getpid()}"
        with ray_executor._patience():
            cluster = Cluster(
                initialize_head=True,
                head_node_args={
                    "num_cpus": 1,
                    "object_store_memory": 128 << 20,
                    "include_dashboard": False,
                    "temp_dir": str(folder),
                },
            )
            node = cluster.add_node(num_cpus=1, object_store_memory=128 << 20)
        gone = []

        def lose_node(progress: Any) -> None:
            if progress.good and not gone:
                gone.append(cluster.remove_node(node, allow_graceful=False))

        try:
            report = on_ray(
                raw, tmp_path, ray_address=cluster.address, workers=0, progress=lose_node
            )
            assert gone
        finally:
            cluster.shutdown()
            import shutil

            shutil.rmtree(folder, ignore_errors=True)
        return report

    report = on_stage(act)
    assert report.snapshot == honest[0]
    assert Dataset.open(str(tmp_path)).digest == honest[0]


def test_a_ray_that_is_slow_to_start_is_waited_for(
    ray_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself waits 30 seconds for a node, on a busy machine too."""
    import ray
    from ray._private import services

    asked = []

    def ask(gcs: str, node: str) -> dict[str, str]:
        asked.append(node)
        if len(asked) < 4:
            raise RuntimeError("no such node")
        return {"node": node}

    def init(**options: Any) -> None:
        assert services.get_node("address", "one") == {"node": "one"}

    monkeypatch.setattr(services, "get_node", ask)
    monkeypatch.setattr(ray, "init", init)
    RayExecutor(2, 60.0).close()
    assert asked == ["one"] * 4
    assert services.get_node is ask
    assert is_empty(ray_folders)


def test_a_ray_that_does_not_start_is_a_clear_error(
    ray_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    def init(**options: Any) -> None:  # what Ray raises then has no type of its own
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", init)
    before = os.environ.copy()
    with pytest.raises(JobError, match=r"timed out during startup\.; .*--executor local"):
        RayExecutor(2, 60.0)
    assert dict(os.environ) == dict(before)
    assert is_empty(ray_folders), "nothing of it is left"


def test_a_cluster_that_is_not_there_is_told_at_once(ray_folders: Path) -> None:
    import ray

    with socket.socket() as taken:  # bound and not listening: nobody else gets the port meanwhile
        taken.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*taken.getsockname())
        with pytest.raises(JobError, match=rf"cannot join Ray at {address}: nothing answers"):
            RayExecutor(2, 60.0, address)
    assert not ray.is_initialized()
