"""A PostgreSQL, a service of two workers, and which of their processes may be killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from evofeed.service.jobs import runner


class Postgres:
    """A PostgreSQL in a folder, on a Unix socket."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.data = folder, folder / "data"
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))  # mostly not on the PATH
        self.binaries = Path(shutil.which("initdb") or found[-1]).resolve().parent
        self.user = "nobody" if os.getuid() == 0 else None  # it refuses to run as root
        if self.user:
            shutil.chown(folder, self.user)
        self.run("initdb", "-D", self.data, "-A", "trust", "-U", "evofeed")
        self.start()
        self.run("createdb", "-h", folder, "-U", "evofeed", "service")

    @property
    def url(self) -> str:
        return f"postgresql://evofeed@/service?host={self.folder}"

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses= -c max_connections=80"
        end = time.monotonic() + 60
        while not self.run("pg_ctl", "-D", self.data, "-l", self.folder / "log", "-w", "-o",
                           options, "start", check=False):  # fmt: skip
            assert time.monotonic() < end, (self.folder / "log").read_text()[-3000:]
            time.sleep(0.5)  # backends of the killed one still end

    def kill(self) -> None:
        os.kill(int((self.data / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        time.sleep(random.uniform(0, 2))
        self.start()

    def restart(self) -> None:
        self.stop()
        time.sleep(random.uniform(0, 2))
        self.start()

    def stop(self) -> None:
        self.run("pg_ctl", "-D", self.data, "-m", "fast", "-w", "stop", check=False)

    def run(self, program: str, *arguments: object, check: bool = True) -> bool:
        command = [str(self.binaries / program), *map(str, arguments)]
        done = subprocess.run(
            command, user=self.user, cwd=self.folder, check=False, text=True,
            stdout=subprocess.PIPE if check else subprocess.DEVNULL, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stdout
        return done.returncode == 0


class Service:
    """`evofeed serve --workers 2`, started again when it was killed."""

    def __init__(self, home: Path, port: int, **settings: Any) -> None:
        given = {"home": home, "port": port, "keep_days": 0, "grace_seconds": 600} | settings
        values = {name: v if isinstance(v, str) else str(v) for name, v in given.items()}
        values |= {n: json.dumps(v) for n, v in given.items() if isinstance(v, dict | list)}
        self.environment = os.environ | {f"EVOFEED_{n.upper()}": v for n, v in values.items()}
        self.home, self.url = home, f"http://127.0.0.1:{port}"
        home.mkdir(exist_ok=True)
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "evofeed.cli", "serve", "--no-auth", "--workers", "2"]
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self) -> None:
        """Until it answers; started again if it could not start: its database may be away."""
        end = time.monotonic() + 240
        while time.monotonic() < end:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/readyz", timeout=10).status_code == 200:
                    return
            if self.process.poll() is not None:
                self.start()
            time.sleep(0.3)
        raise RuntimeError("it does not answer: " + (self.home / "log").read_text()[-3000:])

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)

    def kill(self) -> None:
        """Whatever still runs of it: nothing, unless a check failed."""
        if self.process.poll() is None:
            for pid in (self.process.pid, *descendants(self.process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def victims(self) -> dict[str, list[int]]:
        """Processes that may be killed, by what they are."""
        found: dict[str, list[int]] = {"service": [self.process.pid]}
        for pid in descendants(self.process.pid):
            words = cmdline(pid)
            if b"spawn_main" in words and parent(pid) == self.process.pid:
                found.setdefault("worker", []).append(pid)
            elif runner.__name__.encode() in words:
                found.setdefault("driver", []).append(pid)
                found.setdefault("job_worker", []).extend(descendants(pid))
            elif b"resource_tracker" not in words:
                found.setdefault("search", []).append(pid)
        of_jobs = set(found.get("job_worker", ())) | set(found.get("driver", ()))
        found["search"] = [pid for pid in found.get("search", ()) if pid not in of_jobs]
        return {what: pids for what, pids in found.items() if pids}


def cmdline(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return 0


def descendants(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found
