"""The job on Ray: the same bytes, and the same after whatever is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.job.stage import (
    checksums,
    descendants,
    on_stage,
    run,
    start_driver,
    wait_for,
    wait_for_silence,
)

from evofeed.featurize import discover
from evofeed.featurize.job import JobReport, driver
from evofeed.store import Dataset

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

POISON = """
import os, signal, time
from dataclasses import dataclass
from evofeed.featurize.sources import ChainSource

@dataclass(frozen=True, slots=True)
class Poison(ChainSource):
    act: str = ""

    def structure_ref(self):
        if self.act == "crash" and not os.environ.get("PLANNING"):
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.act == "hang" and not os.environ.get("PLANNING"):
            time.sleep(1000)
        return ChainSource.structure_ref(self)
"""


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


def temp_folders() -> list[Path]:
    """Folders of private Rays, other people's included."""
    return list(Path("/tmp").glob("evofeed-ray-*"))


def wait_until(claim: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


@pytest.fixture
def no_token_file() -> Iterator[None]:
    """A private Ray leaves no token in the home folder."""
    token = Path.home() / ".ray" / "auth_token"
    before = token.exists()
    yield
    assert token.exists() == before


def test_ray_gives_the_same_snapshot_as_local_processes_and_leaves_nothing_behind(
    raw: Path, tmp_path: Path, honest: tuple[str, Any], no_token_file: None
) -> None:
    def twice() -> list[str | None]:
        return [on_ray(raw, tmp_path / name).snapshot for name in ("first", "second")]

    before = set(temp_folders())
    assert on_stage(twice) == [honest[0]] * 2
    assert not (set(temp_folders()) - before)


def test_workers_killed_under_ray_blame_nobody(
    raw: Path, tmp_path: Path, honest: tuple[str, Any]
) -> None:
    def act() -> JobReport:
        killed: list[int] = []

        def kill_one(progress: Any) -> None:
            word = ("worker.main", "ray::unit_on_ray")[len(killed) % 2]
            alive = named(os.getpid(), word)
            if len(killed) < 3 and alive:
                killed.append(alive[0])
                os.kill(alive[0], signal.SIGKILL)

        report = on_ray(raw, tmp_path, progress=kill_one)
        assert killed
        return report

    assert on_stage(act).snapshot == honest[0]


def test_a_driver_killed_under_ray_is_taken_up_by_the_next(
    raw: Path, tmp_path: Path, honest: tuple[str, Any]
) -> None:
    before = set(temp_folders())

    def act() -> JobReport:
        pid = start_driver(raw, tmp_path, lambda: None, executor="ray")
        wait_until(lambda: list(tmp_path.glob("shards/*.arrow")))
        os.kill(pid, signal.SIGKILL)
        assert wait_for(pid) == -signal.SIGKILL
        wait_for_silence(20)
        assert not (set(temp_folders()) - before), "the guardian has cleaned up"
        return on_ray(raw, tmp_path)

    assert on_stage(act).snapshot == honest[0]


def test_poison_under_ray_is_quarantined_and_only_it(
    raw: Path, tmp_path: Path, honest: tuple[str, dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evofeed_test_poison.py").write_text(POISON)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    sources = discover(str(raw))
    acts = {sources[4].chain_id: "crash", sources[15].chain_id: "hang"}

    def act() -> JobReport:
        from evofeed_test_poison import Poison  # type: ignore[import-not-found]

        def poisoned(uri: str, **places: Any) -> list[Any]:
            return [
                Poison(**{**_fields(s), "act": acts[s.chain_id]}) if s.chain_id in acts else s
                for s in discover(uri, **places)
            ]

        honest_plan = driver.make_plan

        def plan(*args: Any) -> Any:
            os.environ["PLANNING"] = "1"
            made = honest_plan(*args)
            del os.environ["PLANNING"]
            return made

        driver.discover, driver.make_plan = poisoned, plan  # type: ignore[assignment]
        return on_ray(raw, tmp_path / "data", deadline=8.0, max_broken=0.5)

    report = on_stage(act)
    assert {item["chain_id"]: item["type"] for item in report.broken} == dict.fromkeys(
        acts, "WorkerKilled"
    )
    kept = {k: v for k, v in honest[1].items() if k not in acts}
    assert checksums(tmp_path / "data") == kept


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
