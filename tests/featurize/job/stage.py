"""Helpers to run jobs in forks of pytest's process, kill them and run them again."""

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
from typing import Any, NamedTuple

import jaxtyping
from tests import conftest
from tests.conftest import Said
from tests.inside import Inside

from evofeed.featurize import FeaturizeConfig, discover
from evofeed.featurize.job import JobReport, run_job, units, work
from evofeed.featurize.job.worker import Worker
from evofeed.featurize.search.programs import descendants
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


class Digests(NamedTuple):
    """Digest of a snapshot, and the checksum of each chain in it."""

    snapshot: str
    checksums: dict[str, int]


def run_forked(act: Callable[[], Any]) -> Any:
    """Run `act` in a forked process that adopts orphans; returns its result.

    A process below it that outlives it fails the test. Ray is used in such forks only: a fork of a
    process that has used Ray hangs when it starts a cluster, since it lacks the threads of Ray's
    client.
    """
    assert not has_used_ray(), "this process has used Ray itself: use run_forked"
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
    assert answer, "the fork died without an answer"
    failed, value = pickle.loads(answer)
    if failed:
        raise AssertionError(value)
    return value


def has_used_ray() -> bool:
    """True if this process has started a client of Ray, even if it was shut down."""
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
            reap_orphans()
        except BaseException:
            answer = (True, traceback.format_exc())
            for pid in descendants(os.getpid()):  # those in `block_call` would run forever
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        with os.fdopen(write, "wb") as pipe:
            pipe.write(pickle.dumps(answer))
        code = 0
    finally:
        os._exit(code)


def reap_orphans(seconds: float = 120.0) -> None:
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


def configure_ray() -> None:
    """Set environment variables for a small Ray that ends its processes."""
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
def local_ray(cores: int) -> Iterator[Any]:
    """The `ray` module, with a Ray started below this process."""
    configure_ray()
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
    """Kill servers below this process of a Ray that did not start in this folder."""
    for pid in pids_by_command(folder):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """Child processes of all threads of `pid`."""
    pids: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            pids += [int(child) for child in (task / "children").read_text().split()]
    return pids


def pids_by_command(word: str) -> list[int]:
    """Processes below this one whose command line has this word."""
    pids = []
    for pid in descendants(os.getpid()):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if word in Path(f"/proc/{pid}/cmdline").read_text():
                pids.append(pid)
    return pids


def kill_tree(pid: int) -> None:
    """SIGKILL a process and everything below it."""
    for process in [pid, *descendants(pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def evofeed(*words: str | Path, cwd: Path | None = None, code: int = 0) -> Said:
    """Run the command line in a fork, where its modules are loaded already."""

    def act() -> Said:
        os.environ |= {"COLUMNS": "200", "OMP_NUM_THREADS": "1"}
        os.chdir(cwd or os.curdir)
        return conftest.evofeed(*words, code=code)

    said: Said = run_forked(act)
    return said


@contextlib.contextmanager
def small_units(size: int = 2) -> Iterator[None]:
    """Limit units to a few chains, so that small inputs make many units."""
    original_sizes = units.unit_sizes
    units.unit_sizes = lambda num_chains: (size, size)
    try:
        yield
    finally:
        units.unit_sizes = original_sizes


def run(raw: Path, dataset: Path, **changes: Any) -> JobReport:
    """Run a job in this process with small units and, by default, two local workers."""
    with small_units():
        return run_job(str(raw), str(dataset), **{"executor": "local", "workers": 2, **changes})


def warm_up(raw: Path, dataset: Path) -> None:
    """Load the modules of workers in this process, so that its forks have them."""
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
    """Start a job in a fork, which calls `prepare` first; returns its pid."""
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


def wait_until(is_true: Callable[[], Any], seconds: float = 240.0) -> None:
    """Wait until a condition is true; the limit is for hangs, not for slow machines."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def block_call(mark: Path, owner: Any, name: str) -> None:
    """Patch a function in this process: its calls wait until the file `mark` exists."""
    original = getattr(owner, name)

    def blocked(*args: Any, **more: Any) -> Any:
        while not mark.exists():
            time.sleep(0.02)
        return original(*args, **more)

    setattr(owner, name, blocked)


def kill_at_call(owner: Any, name: str, when: str, nth: int, mark: Path) -> None:
    """Patch a function: the process that makes the nth call kills itself, unless `mark` exists."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def deadly(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        due = calls >= nth and not mark.exists()
        if due and when == "before":
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
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
    """Patch `featurize_chain` in this process and its forks: it calls an act for these chains."""
    original = work.featurize_chain

    def featurize_chain(source: Any, config: Any) -> Any:
        if source.chain_id in acts:
            acts[source.chain_id]()
        return original(source, config)

    work.featurize_chain = featurize_chain  # type: ignore[assignment]


def deadline_only_for(chain_ids: Collection[str]) -> None:
    """Enforce the deadline for these chains only: on a busy machine any may be late."""
    original = Worker.enforce_deadline

    def enforce_deadline(worker: Worker, deadline: float) -> None:
        original(worker, deadline if worker.chain_id in chain_ids else 3600.0)

    Worker.enforce_deadline = enforce_deadline  # type: ignore[method-assign]


class InjectedExecutor(Inside):
    """Runs units in this process, unless `inject` returns another outcome for them."""

    def __init__(self, inject: Callable[[Any], Any], room: int = 2) -> None:
        super().__init__(room)
        self.inject = inject

    def outcome(self, task: Any) -> Any:
        return self.inject(task) or super().outcome(task)


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
