"""A stage on which jobs are run, killed and run again, without touching pytest's own process."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import jaxtyping
from tests import conftest
from tests.conftest import Said
from tests.inside import Inside

from evofeed.featurize import FeaturizeConfig, discover
from evofeed.featurize.job import JobReport, run_job, units, work
from evofeed.featurize.job.worker import Worker
from evofeed.store import Dataset

PR_SET_CHILD_SUBREAPER = 36
RAY_CLIENT = "gcs_client_io_s"  # a thread that stays when Ray is shut down
LOADED = """
import sys

def loaded():
    ours = [vars(m) for name, m in sys.modules.items() if name.startswith("evofeed")]
    loops = [v for names in list(map(dict, ours)) for v in names.values() if hasattr(v, "py_func")]
    modules = {name for name in sys.modules if not name.startswith("numpy.")}
    return modules, {(loop.py_func, str(s)) for loop in loops for s in loop.signatures}
"""


def on_stage(act: Callable[[], Any]) -> Any:
    """Run `act` in a forked process that adopts orphans; returns what it returns.

    No process started in it, directly or not, may outlive it: that fails the test. What uses Ray
    does so on a stage: a fork of a process that has used it waits for ever where it starts a
    cluster, for the threads of Ray's client are not in it.
    """
    assert not has_used_ray(), "this process has used Ray itself: do that on a stage"
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        _perform(act, write)
    os.close(write)
    try:
        with os.fdopen(read, "rb") as pipe:
            answer = pipe.read()
    except BaseException:  # it took longer than pytest allows
        kill_tree(pid)
        raise
    finally:
        os.waitpid(pid, 0)
    assert answer, "the stage died without a word"
    failed, value = pickle.loads(answer)
    if failed:
        raise AssertionError(value)
    return value


def has_used_ray() -> bool:
    """Whether a client of Ray's was started in this process, though it may be shut down."""
    for name in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread has just ended
            if name.read_text().strip() == RAY_CLIENT:
                return True
    return False


def _perform(act: Callable[[], Any], write: int) -> None:
    code = 1
    try:
        faulthandler.disable()  # crashes are on the programme here
        jaxtyping.config.update("jaxtyping_disable", True)  # checked elsewhere; here time counts
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            answer = (False, act())
            wait_for_silence()
        except BaseException:
            answer = (True, traceback.format_exc())
            for each in descendants(os.getpid()):  # whoever holds still would do so forever
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
        with os.fdopen(write, "wb") as pipe:
            pipe.write(pickle.dumps(answer))
        code = 0
    finally:
        os._exit(code)


def wait_for_silence(seconds: float = 120.0) -> None:
    """Reap adopted processes until there is none; fail if one stays alive."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            time.sleep(0.02)
    alive = [Path(f"/proc/{pid}/cmdline").read_text()[:60] for pid in children(os.getpid())]
    raise AssertionError(f"orphans: {alive}")


def quiet_rays() -> None:
    """From now on a Ray that this process starts, or a job of it, is small and leaves nothing."""
    os.environ |= {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_process_group_cleanup_enabled": "1",  # tools die with their worker
        "RAY_memory_monitor_refresh_ms": "0",
        # Ray joins its first driver to workers that it has started in advance, and if one of
        # these is killed meanwhile it waits for minutes.
        "RAY_prestart_worker_first_driver": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }


@contextlib.contextmanager
def a_ray(cores: int) -> Iterator[Any]:
    """A Ray on this machine, below this process; `ray` itself."""
    quiet_rays()
    import ray

    with tempfile.TemporaryDirectory(
        prefix="ef-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:  # short, for sockets are below
        for left in (2, 1, 0):  # Ray gives a node 30 seconds, which a busy machine may not have
            try:
                ray.init(
                    "local", num_cpus=cores, object_store_memory=128 << 20, _temp_dir=folder,
                    include_dashboard=False, log_to_driver=False, logging_level="ERROR",
                    resources={"db:here": 1},
                )  # fmt: skip
                break
            except Exception:
                ray.shutdown()
                end_servers(folder)
                if not left:
                    raise
        try:
            yield ray
        finally:
            ray.shutdown()


def end_servers(folder: str) -> None:
    """End what a Ray that did not start has left: servers below this process, of this folder."""
    for pid in named(folder):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """Processes started by `pid`, whichever thread of it did."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def descendants(pid: int) -> list[int]:
    """Processes started by `pid`, and by those, and so on."""
    found = children(pid)
    for child in list(found):
        found += descendants(child)
    return found


def named(word: str) -> list[int]:
    """Processes below this one whose command line has this word."""
    found = []
    for each in descendants(os.getpid()):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if word in Path(f"/proc/{each}/cmdline").read_text():
                found.append(each)
    return found


def kill_tree(pid: int) -> None:
    """SIGKILL a process and everything below it, as a machine's end would."""
    for each in [pid, *descendants(pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def evofeed(*words: str | Path, cwd: Path | None = None, code: int = 0) -> Said:
    """The command line on a stage, where what it needs is loaded already."""

    def act() -> Said:
        os.environ |= {"COLUMNS": "200", "OMP_NUM_THREADS": "1"}
        os.chdir(cwd or os.curdir)
        return conftest.evofeed(*words, code=code)

    said: Said = on_stage(act)
    return said


@contextlib.contextmanager
def small_units(size: int = 2) -> Iterator[None]:
    """Units of a few chains, so that small inputs make many."""
    before = units.unit_sizes
    units.unit_sizes = lambda num_chains: (size, size)
    try:
        yield
    finally:
        units.unit_sizes = before


def run(raw: Path, dataset: Path, **changes: Any) -> JobReport:
    """A job in this process, small units, two local workers unless said otherwise."""
    with small_units():
        return run_job(str(raw), str(dataset), **{"executor": "local", "workers": 2, **changes})


def warm_up(raw: Path, dataset: Path) -> None:
    """Load in this process what every worker needs, so that forks find it there."""
    sources = tuple(discover(str(raw))[:2])
    task = work.UnitTask(
        unit_id="warm",
        dataset_uri=str(dataset),
        sources=sources,
        config=FeaturizeConfig(),
        crop=None,
        memory=8 << 30,
    )
    task.work(lambda chain_id: None)


def start_driver(raw: Path, dataset: Path, prepare: Callable[[], None], **changes: Any) -> int:
    """A job in a process of its own; `prepare` is called in it first. Returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        prepare()
        code = run(raw, dataset, **changes).exit_code
    finally:
        os._exit(code)


def wait_for(pid: int) -> int:
    """Exit code of a driver, negative if a signal ended it."""
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def wait_until(claim: Callable[[], Any], seconds: float = 240.0) -> None:
    """Look again and again until it is true; the limit is for what hangs, not for what is slow."""
    end = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def hold_still(mark: Path, owner: Any, name: str) -> None:
    """From now on in this process a function does its work only once there is a mark."""
    honest = getattr(owner, name)

    def late(*args: Any, **more: Any) -> Any:
        while not mark.exists():
            time.sleep(0.02)
        return honest(*args, **more)

    setattr(owner, name, late)


def arm(owner: Any, name: str, when: str, nth: int, mark: Path) -> None:
    """Have the process that makes the nth call of a function kill itself, once in all."""
    honest: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def deadly(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        due = calls >= nth and not mark.exists()
        if due and when == "before":
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        result = honest(*args, **kwargs)
        if due:
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, deadly)


def checksums(dataset: Path) -> dict[str, int]:
    """Checksum of each chain in the published snapshot."""
    index = Dataset.open(str(dataset)).index
    return dict(zip(index["chain_id"].to_pylist(), index["checksum"].to_pylist(), strict=True))


def poison(acts: dict[str, Callable[[], None]]) -> None:
    """From now on in this process and those it forks, these chains act up."""
    honest = work.featurize_chain

    def featurize_chain(source: Any, config: Any) -> Any:
        if source.chain_id in acts:
            acts[source.chain_id]()
        return honest(source, config)

    work.featurize_chain = featurize_chain  # type: ignore[assignment]


def hurry_only(chain_ids: Collection[str]) -> None:
    """From now on the deadline is for these chains: on a starved machine any may be late."""
    honest = Worker.enforce_deadline

    def enforce_deadline(worker: Worker, deadline: float) -> None:
        honest(worker, deadline if worker.chain_id in chain_ids else 3600.0)

    Worker.enforce_deadline = enforce_deadline  # type: ignore[method-assign]


class Fateful(Inside):
    """Runs units here, some in flight, unless fate has something else for them."""

    def __init__(self, fate: Callable[[Any], Any], room: int = 2) -> None:
        super().__init__(room)
        self.fate = fate

    def outcome(self, task: Any) -> Any:
        return self.fate(task) or super().outcome(task)


def break_chains(raw: Path, count: int) -> dict[str, str]:
    """Damage one file of every one of the first chains; its path below `raw`, by chain."""
    broken = {}
    for number, folder in enumerate(sorted((raw / "alignments").iterdir())[:count]):
        if number % 2:
            file = folder / "bfd_uniclust_hits.a3m"
            file.write_text(file.read_text().rstrip("\n") + "A\n")  # a column too many
        else:
            file = folder / "pdb70_hits.hhr"
            file.write_text(file.read_text().replace("Aligned_cols=", "Aligned_cols=many", 1))
        broken[folder.name] = str(file.relative_to(raw))
    return broken
