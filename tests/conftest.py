"""What every test shares: shape checking, the golden pack, determinism."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

# Without a GPU the kernels run under Triton's interpreter, which reads this at import.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Shape annotations become checks. Kernels stay out, the loader's too: Triton reads their source.
_LOADER = Path(__file__).resolve().parent.parent / "loader"
install_import_hook(
    [
        *("evofeed.features", "evofeed.featurize", "evofeed.store", "evofeed.trainer"),
        *(f"evofeed.loader.{path.stem}" for path in _LOADER.iterdir() if path.stem != "fused"),
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

_DEFAULT_GOLDEN = Path(__file__).resolve().parent.parent.parent / "shared" / "golden"


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
    forget_stale_loops(_LOADER.parent / _room)


def golden_root() -> Path | None:
    """The golden pack's folder (with `data/` and `model/`), or None where there is none."""
    root = Path(os.environ.get("EVOFEED_GOLDEN") or _DEFAULT_GOLDEN)
    return root if (root / "data").is_dir() and (root / "model").is_dir() else None


def golden_files(pattern: str) -> list[Path]:
    """Golden files matching a pattern below the pack's root, for parametrize."""
    root = golden_root()
    return sorted(root.glob(pattern)) if root else []


_skipped: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """Where the golden pack is required, its absence must not become empty parameter lists."""
    del config
    if "golden" in os.environ.get("EVOFEED_REQUIRE", "") and golden_root() is None:
        raise pytest.UsageError("the golden pack is required, but EVOFEED_GOLDEN holds none")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember what was skipped for want of anything but a GPU.

    A pack may hold none of some kind of case: that is an empty parameter set, and nothing lacks.
    """
    empty = "got empty parameter set" in str(report.longrepr)
    if report.skipped and not (hasattr(report, "wasxfail") or "gpu" in report.keywords or empty):
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where requirements are named, a skipped test is a failed run."""
    if os.environ.get("EVOFEED_REQUIRE") and _skipped and session.exitstatus == 0:
        print(f"\nskipped although EVOFEED_REQUIRE is set: {', '.join(_skipped)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def golden() -> Path:
    """The golden pack; without one its tests skip here and CI does not start."""
    root = golden_root()
    if root is None:
        pytest.skip("no golden pack: set EVOFEED_GOLDEN to a folder with data/ and model/")
    return root
