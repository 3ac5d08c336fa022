"""What every test shares: shape checking, tiers, the recorded pack, determinism."""

from __future__ import annotations

import contextlib
import gc
import gzip
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings
from tests import tiers

# Without a GPU the kernels run under Triton's interpreter, which reads this at import.
ON_GPU = Path("/dev/nvidiactl").exists()
if not ON_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Shape annotations become checks, in modules that have some: no kernel, Triton reads the source.
# Not on a GPU: recorded steps compile parts of the model, and the compiler would trace the checks.
_ROOT = Path(__file__).resolve().parent.parent
_CHECKERS = all(importlib.util.find_spec(name) for name in ("jaxtyping", "beartype"))
SHAPES_CHECKED = _CHECKERS and not ON_GPU
if SHAPES_CHECKED:
    from jaxtyping import install_import_hook

    install_import_hook(
        [
            ".".join(("evofeed", *path.relative_to(_ROOT).with_suffix("").parts))
            for room in ("featurize", "store", "loader", "trainer")
            for path in (_ROOT / room).rglob("*.py")
            if "evofeed.base.shapes import" in path.read_text()
        ],
        "beartype.beartype",
    )

# At a desk examples are drawn again each time. Where requirements are named, as in CI, they are
# always the same, and a failure prints them: a change is not to fail of what it did not touch.
settings.register_profile("desk", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("EVOFEED_REQUIRE") else "desk")

# A shell's `&` and many a CI start us with SIGINT ignored, and so would be whatever we start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SMALL_PACK = Path(__file__).resolve().parent / "golden"
WHOLE_PACK = SMALL_PACK.parents[2] / "shared" / "golden"


def forget_stale_loops(room: Path) -> None:
    """Remove compiled loops that are older than a file they may call.

    Numba looks at a loop's own file alone: a broken function elsewhere would not be noticed.
    """
    sources = [path for path in room.rglob("*.py") if re.search("numba", path.read_text())]
    newest = max(path.stat().st_mtime for path in sources)
    for kept in room.rglob("__pycache__/*.nb[ic]"):
        with contextlib.suppress(FileNotFoundError):  # another worker was first
            if kept.stat().st_mtime < newest:
                kept.unlink()


for _room in ("featurize", "src/evofeed", "store"):
    forget_stale_loops(_ROOT / _room)


def golden_root() -> Path:
    """The recorded pack: `EVOFEED_GOLDEN`, a whole one beside the checkout, the small one."""
    root = Path(os.environ.get("EVOFEED_GOLDEN") or WHOLE_PACK).resolve()
    if (root / "data").is_dir() and (root / "model").is_dir():
        return root
    if os.environ.get("EVOFEED_GOLDEN"):
        raise pytest.UsageError(f"EVOFEED_GOLDEN is {root}, which has no data/ and model/")
    return SMALL_PACK


def golden_folder(name: str) -> Path:
    """One folder of the recorded pack; of the small one, where a pack has no such folder."""
    folder = golden_root() / name
    return folder if folder.is_dir() else SMALL_PACK / name


def golden_files(pattern: str) -> list[Path]:
    """Recorded files that match `FOLDER/...`, for parametrize."""
    name, _, rest = pattern.partition("/")
    folder = golden_folder(name)
    return sorted(folder.glob(rest)) if rest else [folder]


def exit_code(*words: str) -> int:
    """How a command of ours ends, in this process."""
    from evofeed.cli import main

    with pytest.raises(SystemExit) as ended:
        main([*words])
    return int(ended.value.code or 0)


class Said(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def evofeed(*words: str | Path, code: int = 0) -> Said:
    """A command of ours in this process, which is to end with this code."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        said = Said(exit_code(*map(str, words)), out.getvalue(), err.getvalue())
    assert said.code == code, said
    return said


def golden_json(path: Path) -> Any:
    """A recorded table, plain or as `.gz`."""
    packed = Path(f"{path}.gz")
    return json.loads(gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_text())


_skipped: list[str] = []


def pytest_report_header() -> list[str]:
    """What this run does not check."""
    why = "on a GPU" if ON_GPU else "beartype and jaxtyping are not both installed"
    return [] if SHAPES_CHECKED else [f"{why}: shape annotations are not checked"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m TIER` only files that may have such tests are imported."""
    folder = collection_path.is_dir()
    files = collection_path.rglob("test_*.py") if folder else [collection_path]
    left_out = all(tiers.is_left_out(path, config.option.markexpr) for path in files)
    return True if left_out else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is loaded stays: nobody looks through it for garbage, not in processes forked either."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Every test has one tier, by what it uses."""
    item.add_marker(tiers.tier_of(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A unit test that starts a process or opens a socket fails."""
    tiers.watch(item)
    try:
        return (yield)
    finally:
        tiers.watch(None)


def pytest_configure(config: pytest.Config) -> None:
    """Where the whole pack is required, the small one does not stand in for it."""
    del config
    if golden_root() == SMALL_PACK and "golden" in os.environ.get("EVOFEED_REQUIRE", ""):
        raise pytest.UsageError("the whole recorded pack is required: set EVOFEED_GOLDEN to it")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember what was skipped for want of anything but a GPU.

    A whole pack may hold none of some kind of case: that is an empty parameter set, and nothing
    lacks. The small one was chosen to leave none empty.
    """
    empty = "got empty parameter set" in str(report.longrepr) and golden_root() != SMALL_PACK
    if report.skipped and not (hasattr(report, "wasxfail") or "gpu" in report.keywords or empty):
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where requirements are named, a skipped test is a failed run."""
    if os.environ.get("EVOFEED_REQUIRE") and _skipped and session.exitstatus == 0:
        print(f"\nskipped although EVOFEED_REQUIRE is set: {', '.join(_skipped)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


_of_the_run: list[Path] = []


@pytest.fixture(scope="session", autouse=True)
def _folder_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Below the folder that all workers of a run have in common."""
    base = tmp_path_factory.getbasetemp()
    _of_the_run[:] = [base.parent if "PYTEST_XDIST_WORKER" in os.environ else base]


def once_a_run(name: str, make: Callable[[Path], object]) -> Path:
    """A folder that one worker fills; the others wait for it, and nobody changes it."""
    (root,) = _of_the_run
    with FileLock(root / f"{name}.lock"):
        if not (root / name).exists():
            shutil.rmtree(root / f"{name}.part", ignore_errors=True)
            (root / f"{name}.part").mkdir()
            make(root / f"{name}.part")
            (root / f"{name}.part").rename(root / name)
    return root / name


@pytest.fixture(scope="session")
def golden() -> Path:
    """The recorded pack's folder."""
    return golden_root()


def required(name: str, program: str | None) -> str:
    """A program, or the end of the test: a failure where `EVOFEED_REQUIRE` names what it is for."""
    if program is None:
        if name in os.environ.get("EVOFEED_REQUIRE", ""):
            pytest.fail(f"{name} is required but not installed")
        pytest.skip(f"no {name} here")
    return program


def own_packages(patch: pytest.MonkeyPatch, *names: str) -> None:
    """What `make projects` installs can be imported; the end of the test where one is not there."""
    patch.setattr(sys, "path", [*sys.path, str(_ROOT / ".projects")])
    for name in names:
        pytest.importorskip(name, reason="make projects")


@pytest.fixture
def fast_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: a killed process loses no page cache, so the
    tests of its death need no disk to wait for."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="evofeed-test-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def chromium() -> str:
    names = "chromium", "chromium-browser", "google-chrome"
    return required("browser", next(filter(None, map(shutil.which, names)), None))


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Any]:
    """Chromium with WebGL in software."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--disable-dev-shm-usage", "--enable-unsafe-swiftshader"],
        )
        yield opened
        opened.close()
