"""docs/operate.md, its commands run as they stand on this machine, in folders of the test's own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.service.conftest import postgres_server
from tests.service.shipped import ROOT, free_port, nginx_program

PAGE = ROOT / "docs" / "operate.md"
PROGRAMS = Path(__file__).parent / "data" / "bin"
"""What the page takes for granted: systemd, sudo and pip in the small; all else is real."""


def commands(page: str) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", page, re.M | re.S)


@pytest.mark.slow
def test_the_page_works_from_an_empty_machine_to_a_dataset_that_moved(tmp_path: Path) -> None:
    first, *rest = commands(PAGE.read_text())
    assert len(rest) >= 10 and first.startswith("export NAME=")
    nginx, user = nginx_program(), "root" if os.getuid() == 0 else os.environ.get("USER", "")
    with ExitStack() as stack:
        server = stack.enter_context(postgres_server())
        places = {
            "NAME": "localhost",
            "PORT": str(free_port()),
            "WAY_IN": str(free_port()),
            "AS": user,
            "SOCKET": str(server.folder),
        } | {
            name: str(tmp_path / name.lower())
            for name in ("ETC", "HOME_DIR", "DATA", "RAW", "BACKUP", "UNITS")
        }
        assert set(places) == set(re.findall(r"(\w+)=", first)), "all that the page sets"
        Path(places["UNITS"]).mkdir()
        path = [PROGRAMS, Path(sys.executable).parent, server.binaries, Path(nginx).parent]
        environment = {
            "PATH": ":".join([*map(str, path), os.environ["PATH"]]),
            "HOME": str(tmp_path),
        } | places
        stack.callback(_stop, places, nginx, environment)
        script = tmp_path / "page.sh"
        # `createuser` by the superuser of the test's PostgreSQL, who has that very name.
        text = "\n".join(rest).replace("createuser --host=$SOCKET evofeed", "true")
        script.write_text(f"set -euo pipefail\n{text}")
        said, journal = tmp_path / "said", Path(places["UNITS"], "journal")
        with said.open("wb") as output:  # no pipe: nginx stays behind and would hold it open
            done = subprocess.run(
                ["bash", "-x", str(script)],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=output,
                timeout=550,
                check=False,
            )
        more = journal.read_text()[-2000:] if journal.exists() else ""
        assert done.returncode == 0, said.read_text()[-4000:] + more
    (extra,) = set(Path(places["UNITS"], "installed").read_text().split())
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = set(re.findall(r"[a-z0-9]+", extra))
    assert named <= set(known["optional-dependencies"])
    assert Path(places["DATA"], "archive", "pdb", "refs", "main").exists()
    assert Path(places["ETC"]).stat().st_mode & 0o077 == 0
    assert Path(places["ETC"], "admin.token").stat().st_mode & 0o077 == 0


def _stop(places: dict[str, str], nginx: str, environment: dict[str, str]) -> None:
    pid = Path(places["UNITS"], "pid")
    if pid.exists():
        subprocess.run(["kill", pid.read_text()], check=False, capture_output=True)
    config = Path(places["ETC"], "nginx.conf")
    if config.exists():
        subprocess.run([nginx, "-c", str(config), "-s", "stop"], check=False, capture_output=True)
