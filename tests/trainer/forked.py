"""Processes of a run, forked from one that has imported torch and the trainer: a start costs 0.1 s.

They know nothing of the process that asks for them, as those that torchrun starts.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    ["evofeed.trainer.run.train", "evofeed.loader", "torch._dynamo", "pandas"]
)


def fork(
    target: Callable[..., Any], *arguments: Any, log: Path, **environment: str
) -> ForkServerProcess:
    """A process that calls the target; what it prints is in the log."""
    process = _SERVER.Process(target=_begin, args=(target, arguments, str(log), environment))
    process.start()
    return process


def run_ranks(ranks: int, target: Callable[..., Any], *arguments: Any, folder: Path) -> str:
    """Call the target on some ranks, as torchrun does; what the first one printed."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    logs = [folder / f"rank{rank}.log" for rank in range(ranks)]
    world = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
    }  # fmt: skip
    processes = [
        fork(target, *arguments, log=log, **world, RANK=str(rank), LOCAL_RANK=str(rank))
        for rank, log in enumerate(logs)
    ]
    for process in processes:
        process.join(400)
    failed = [log for process, log in zip(processes, logs, strict=True) if process.exitcode != 0]
    for process in processes:
        process.kill()
    assert not failed, "\n".join(log.read_text()[-3000:] for log in failed)
    return logs[0].read_text()


def free_port() -> int:
    """A port that no process listens on now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def _begin(
    target: Callable[..., Any], arguments: Any, log: str, environment: dict[str, str]
) -> None:
    to = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(to, stream)
    os.environ |= environment
    gc.freeze()  # loaded objects are not garbage
    try:
        target(*arguments)
    finally:
        sys.stdout.flush()


def command(function: Callable[..., Any], *words: str, catch: bool = True) -> Any:
    """A command's result in this process; it must succeed where its errors are caught."""
    app = typer.Typer()
    app.command()(function)
    done = CliRunner().invoke(app, list(words), catch_exceptions=catch)
    assert done.exit_code == 0, done.output
    return done
