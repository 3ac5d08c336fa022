"""Starting a private Ray with what a job needs of it: a GCS, a raylet and workers.

`ray.init` also starts five Python processes, whatever it is asked for: a
dashboard, an autoscaler's monitor, a log monitor and two agents, one after another;
that is most of its 12 seconds on two idle cores. A job has no use for any of them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_START = 120.0  # seconds a raylet may take to start on a busy machine
_AGENTS = ("dashboard_agent_command", "runtime_env_agent_command")
_LEFT_OUT = ("start_monitor", "start_log_monitor", "start_api_server")


@contextlib.contextmanager
def starting(minimal: bool) -> Iterator[None]:
    """While `ray.init` starts a node: wait for it as long as it takes, not Ray's 30 seconds.

    If the raylet or the GCS ends meanwhile, so does this process: Ray would wait for a minute.

    Args:
        minimal: start a GCS and a raylet only. Fails where this version of Ray needs more.
    """
    from ray._private import node, services, utils

    start: Callable[..., Any] = services.start_ray_process
    ask: Callable[..., Any] = services.get_node
    done = threading.Event()

    def start_process(command: list[str], process_type: str, *args: Any, **more: Any) -> Any:
        if minimal and process_type == "raylet":
            command = [_without_agent(part, command) for part in command]
        started = start(command, process_type, *args, **more)
        if process_type in ("gcs_server", "raylet"):
            threading.Thread(target=watch, args=(started.process,), daemon=True).start()
        return started

    def watch(server: subprocess.Popen[bytes]) -> None:
        while not done.wait(0.1):
            if server.poll() is not None:
                os._exit(1)

    def ask_on(*args: Any, **more: Any) -> Any:
        end = time.monotonic() + _START
        while True:
            try:
                return ask(*args, **more)
            except RuntimeError:  # it is not there yet
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    with contextlib.ExitStack() as stack:
        stack.callback(done.set)
        stack.enter_context(_instead(services, "start_ray_process", start_process))
        stack.enter_context(_instead(services, "get_node", ask_on))
        if minimal:
            for name in _LEFT_OUT:
                stack.enter_context(_instead(node.Node, name, _nothing))
            # Asked only for the agents' sake, and a second of imports.
            stack.enter_context(_instead(utils, "get_dashboard_dependency_error", _nothing))
        yield


def _nothing(*args: Any, **more: Any) -> None:
    return None


@contextlib.contextmanager
def _instead(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _without_agent(part: str, command: list[str]) -> str:
    """The raylet insists on agents and waits for the files with their ports."""
    option = part.removeprefix("--").partition("=")[0]
    if option not in _AGENTS:
        return part
    values = dict(each.removeprefix("--").partition("=")[::2] for each in command)
    stand_in = str(Path(__file__).with_name("ray_agent.py"))
    agent = [sys.executable, "-S", stand_in, option, values["session_dir"], values["node_id"]]
    return f"--{option}={subprocess.list2cmdline(agent)}"
