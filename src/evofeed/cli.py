"""The `evofeed` command: one name per job, each loaded only when it is called.

The table below is the whole of it; the commands live beside the rooms they
belong to (`featurize/commands.py`, `store/commands.py`, ...). Nothing heavy is
imported before a command runs, so `evofeed --help` answers at once.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from typing import Any

import typer

from evofeed import __version__
from evofeed.errors import EvofeedError

# name: (module, Typer app or function, one line for --help)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "demo": ("evofeed.demo.commands", "demo", "The whole path on synthetic or real files."),
    "synth": ("evofeed.synth.commands", "synth", "Write a synthetic raw dataset."),
    "featurize": ("evofeed.featurize.commands", "featurize", "Raw files to a shard dataset."),
    "assemblies": (
        "evofeed.featurize.assembly_commands",
        "assemblies",
        "The complexes of raw files, beside their chains.",
    ),
    "check": ("evofeed.featurize.commands", "check", "What is amiss with an input."),
    "search": ("evofeed.featurize.search.commands", "search", "Sequences to alignments."),
    "export": ("evofeed.featurize.search.commands", "export", "Alignments for other programs."),
    "cluster": ("evofeed.featurize.search.commands", "cluster", "Sequence clusters, by mmseqs."),
    "snapshots": ("evofeed.store.commands", "snapshots", "List, compare, tag, verify, collect."),
    "shards": ("evofeed.store.shard_commands", "shards", "Look inside shards."),
    "serve": ("evofeed.service.commands", "serve", "The manifest service and dashboard."),
    "tokens": ("evofeed.service.access.commands", "tokens", "API tokens of the service."),
    "jobs": ("evofeed.featurize.job.commands", "jobs", "Featurize jobs: status, cancel, retry."),
    "plan": ("evofeed.loader.commands", "plan", "Which rank reads which chains."),
    "train": ("evofeed.trainer.commands", "train", "Train the AlphaFold2 model."),
    "tune": ("evofeed.trainer.tune.commands", "tune", "Which settings train fastest here."),
    "replay": ("evofeed.trainer.commands", "replay", "A step without a finite gradient, again."),
    "report": ("evofeed.trainer.report.commands", "report", "Where a run's time went."),
    "predict": ("evofeed.trainer.commands", "predict", "A structure from a checkpoint."),
    "plot": ("evofeed.plot_commands", "plot", "Pictures of a dataset's chains."),
    "doctor": ("evofeed.doctor.command", "doctor", "What this machine has, and what to do."),
    "bench": (
        "evofeed.trainer.bench.commands",
        "bench_commands",
        "Measure loader and communication on this machine.",
    ),
}


_REMOTE = "evofeed.service.client.commands"
REMOTE: dict[str, tuple[str, str, str]] = {
    "featurize": (_REMOTE, "featurize", "Raw files to a dataset, by the service."),
    "jobs": (_REMOTE, "jobs", "Its jobs: list, watch, cancel, retry, log, broken chains."),
    "snapshots": (
        "evofeed.service.client.snapshot_commands",
        "snapshots",
        "Its snapshots and refs, also written.",
    ),
    "search": (_REMOTE, "search", "Alignments of sequences, by the service."),
    "tokens": (_REMOTE, "tokens", "Its tokens."),
    "webhooks": (_REMOTE, "webhooks", "Whom it tells of jobs."),
}
"""What `evofeed --service URL` knows: the same names, done by a service over HTTP."""


def help_text() -> str:
    """The list of commands, as `evofeed --help` prints it."""
    rows = "\n".join(f"  {name:<10} {line}" for name, (_, _, line) in COMMANDS.items())
    return (
        "Usage: evofeed COMMAND [ARGS]...\n\n"
        "AlphaFold2 features at the speed of the GPU: text files to training batches.\n\n"
        f"Commands:\n{rows}\n\n"
        "Start with:    evofeed demo\n"
        "One command:   evofeed COMMAND --help\n"
        f"By a service:  evofeed --service URL {'|'.join(REMOTE)}\n"
        "Version:       evofeed --version"
    )


def main(argv: list[str] | None = None) -> None:
    """Run the command line; our own errors and the system's become one line and exit code 1."""
    for stream in (sys.stdout, sys.stderr):  # a terminal that has no letter for it gets a ?
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    given, commands = (sys.argv[1:] if argv is None else argv), COMMANDS
    if given[:1] == ["--service"]:
        os.environ["EVOFEED_SERVICE"], commands = "".join(given[1:2]), REMOTE
        given = given[2:]
    name, *rest = given or ["--help"]
    if name in ("--help", "-h", "help"):
        print(help_text())
    elif name == "--version":
        print(f"evofeed {__version__}")
    elif name not in commands:
        import difflib

        near = difflib.get_close_matches(name, commands, 1)
        meant = f", did you mean {near[0]!r}?" if near else ";"
        sys.exit(_fail(f"no command {name!r}{meant} `evofeed --help` lists them", 2))
    else:
        try:
            _load(*commands[name][:2], name)(args=rest, prog_name=f"evofeed {name}")
        except EvofeedError as error:
            sys.exit(_fail(str(error), 1))
        except OSError as error:  # no such folder, no right to write there, a full disk, ...
            place = f"{error.filename}: " if error.filename else ""
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            hint = "; free space or write elsewhere, then run it again" if full else ""
            sys.exit(_fail(f"{place}{error.strerror or error}{hint}", 1))
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("evofeed"):
                raise
            sys.exit(_fail(f"{name} needs {error.name}: pip install 'evofeed[all]'", 1))
        except KeyboardInterrupt:
            sys.exit(_fail("interrupted", 130))
        except SystemExit as end:
            if end.code == 130:  # what Typer makes of Ctrl-C
                _fail("interrupted", 130)
            raise


def _load(module: str, attribute: str, name: str) -> Any:
    """The Typer app behind a command; a plain function becomes an app of one command."""
    target: Any = getattr(importlib.import_module(module), attribute)
    if isinstance(target, typer.Typer):
        return target
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(target)
    return app


def _fail(message: str, code: int) -> int:
    print(f"evofeed: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
