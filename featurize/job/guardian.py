"""A small process that cleans up after a private Ray when its driver is gone.

If the driver is killed, Ray's agents stay for a minute and its temporary folder
forever. The guardian holds the read end of a pipe: when the driver closes it, or
dies, every process of this Ray is killed and the folder removed. It needs the
standard library only, so it costs little.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

_PATIENCE = 10.0  # seconds


def start(folder: str) -> subprocess.Popen[bytes]:
    """Watch over the Ray whose temporary folder this is, until the pipe to it closes."""
    return subprocess.Popen(
        [sys.executable, "-S", str(Path(__file__)), folder, str(os.getpid())],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C in the terminal is not meant for it
    )


def dismiss(guardian: subprocess.Popen[bytes]) -> None:
    """Let it clean up, and wait until it has."""
    guardian.communicate()


def inhabitants(folder: str) -> list[int]:
    """Processes that hold a file in the folder open: all of a Ray do, their logs lie there.

    Their environment would not do as a mark: Ray's agents write their title over it.
    """
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # gone, or somebody else's
            if process.name.isdigit() and any(
                str(file.readlink()).startswith(f"{folder}/") for file in (process / "fd").iterdir()
            ):
                found.append(int(process.name))
    return found


def clean(folder: str, driver: int) -> None:
    """Kill what lives in the folder, except the driver, and remove it."""
    end = time.monotonic() + _PATIENCE
    while (pids := set(inhabitants(folder)) - {driver}) and time.monotonic() < end:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    clean(sys.argv[1], int(sys.argv[2]))
