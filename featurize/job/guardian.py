"""A small process that cleans up after a private Ray when its driver is gone.

If the driver is killed, Ray's agents stay for a minute and its temporary folder
for ever. The guardian holds the read end of a pipe: when the driver closes it, or
dies, every process that carries this Ray's mark in its environment is killed and
the folder removed. It needs the standard library only, so it costs little.
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

MARK = "EVOFEED_RAY_SESSION"
_PATIENCE = 10.0  # seconds


def start(folder: str) -> subprocess.Popen[bytes]:
    """Watch over the Ray whose temporary folder this is, until the pipe to it closes."""
    environ = {name: value for name, value in os.environ.items() if name != MARK}
    return subprocess.Popen(
        [sys.executable, "-S", str(Path(__file__)), folder],
        stdin=subprocess.PIPE,
        env=environ,
        start_new_session=True,  # Ctrl-C in the terminal is not meant for it
    )


def dismiss(guardian: subprocess.Popen[bytes]) -> None:
    """Let it clean up, and wait until it has."""
    guardian.communicate()


def marked(folder: str) -> list[int]:
    """Processes that were started with this mark."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def clean(folder: str) -> None:
    """Kill what carries the mark, and remove the folder."""
    end = time.monotonic() + _PATIENCE
    while (pids := marked(folder)) and time.monotonic() < end:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    clean(sys.argv[1])
