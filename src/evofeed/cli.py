"""The `evofeed` command: a table of subcommands, each imported only when it is called.

Commands are in the rooms they belong to (`featurize/commands.py`, `store/commands.py`, ...).
Large packages are imported by the command that needs them, so `evofeed --help` answers at once.
"""

from __future__ import annotations

import errno
import importlib
import io
import sys
from opcode import opname
from typing import Any

import typer

from evofeed import __version__
from evofeed.base.errors import EvofeedError
from evofeed.base.files import advice

# name: (module, Typer app or function, one line for --help)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "demo": ("evofeed.demo.commands", "demo", "Run the whole path on synthetic or real files."),
    "synth": ("evofeed.synth.commands", "synth", "Write a synthetic raw dataset."),
    "featurize": ("evofeed.featurize.commands", "featurize", "Turn raw files into a dataset."),
    "assemblies": ("evofeed.featurize.assembly_commands", "assemblies", "Complexes of raw files."),
    "check": ("evofeed.featurize.commands", "check", "Check an input before a job."),
    "search": ("evofeed.featurize.search.commands", "search", "Search for alignments."),
    "make-set": ("evofeed.featurize.sets.commands", "make_set", "Make a training set."),
    "export": ("evofeed.featurize.export.commands", "export", "Inputs for other programs."),
    "cluster": ("evofeed.featurize.search.commands", "cluster", "Cluster sequences with mmseqs."),
    "snapshots": ("evofeed.store.commands", "snapshots", "List, compare, tag, verify, collect."),
    "serve": ("evofeed.service.commands", "serve", "Serve datasets and a dashboard."),
    "tokens": ("evofeed.service.client.commands", "tokens", "Manage tokens of the service."),
    "entries": ("evofeed.featurize.entries.commands", "entries", "Entries for AF3-class models."),
    "jobs": ("evofeed.featurize.job_commands", "jobs", "Show, cancel and retry jobs."),
    "plan": ("evofeed.loader.commands", "plan", "Which rank reads which chains."),
    "train": ("evofeed.trainer.commands", "train", "Train the AlphaFold2 model."),
    "tune": ("evofeed.trainer.tune.commands", "tune", "Find the fastest settings."),
    "report": ("evofeed.trainer.report.commands", "report", "Times and losses of a run."),
    "predict": ("evofeed.trainer.predict.commands", "predict", "Predict structures."),
    "doctor": ("evofeed.doctor.command", "doctor", "Check this machine's setup."),
    "bench": ("evofeed.loader.commands", "bench_commands", "Measure the loader on this machine."),
}


_CLIENT = "evofeed.service.client.commands"
BY_URL: dict[str, tuple[str, str, frozenset[str]]] = {
    "featurize": (_CLIENT, "featurize", frozenset()),
    "search": (_CLIENT, "search", frozenset()),
    "jobs": (_CLIENT, "jobs", frozenset()),
    "snapshots": (_CLIENT, "snapshots", frozenset({"history", "policy", "rm-ref", "tag"})),
}
"""Commands that a service runs if an argument is its URL; of `snapshots` these subcommands only."""

BY_URL_ALONE = frozenset(
    f"{name} {word}"
    for name, words in (("jobs", "ls log broken"), ("snapshots", "history policy rm-ref"))
    for word in words.split()
)
"""Commands that only a service runs: without a URL their help and errors ask for one."""


def help_text() -> str:
    """The list of commands, as `evofeed --help` prints it."""
    rows = "\n".join(f"  {name:<10} {line}" for name, (_, _, line) in COMMANDS.items())
    return (
        "Usage: evofeed COMMAND [ARGS]...\n\n"
        "AlphaFold2 features at the speed of the GPU: text files to training batches.\n\n"
        f"Commands:\n{rows}\n\n"
        "Start with:    evofeed demo\n"
        "One command:   evofeed COMMAND --help\n"
        f"By a service:  evofeed {'|'.join([*BY_URL, 'tokens'])} ... http://HOST:PORT\n"
        "Version:       evofeed --version"
    )


def main(argv: list[str] | None = None) -> None:
    """Run the command line; errors of evofeed and of the system become one line and exit code 1."""
    for stream in (sys.stdout, sys.stderr):  # "?" for characters that the terminal cannot show
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    arguments = sys.argv[1:] if argv is None else argv
    name, *rest = arguments or ["--help"]
    if name in ("--help", "-h", "help"):
        print(help_text())
    elif name == "--version":
        print(f"evofeed {__version__}")
    elif name not in COMMANDS:
        import difflib

        matches = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f", did you mean {matches[0]!r}?" if matches else ";"
        sys.exit(_fail(f"no command {name!r}{hint} `evofeed --help` lists them", 2))
    else:
        try:
            _load(*_command(name, rest), name)(args=rest, prog_name=f"evofeed {name}")
        except EvofeedError as error:
            sys.exit(_fail(str(error), 1))
        except ValueError as error:
            if not _is_wrong_call(error):
                raise
            sys.exit(_fail(str(error), 2))
        except OSError as error:  # no such folder, no permission to write, a full disk, ...
            path = f"{error.filename}: " if error.filename else ""
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            hint = f"; {advice(error)} or write elsewhere, then run it again" if full else ""
            sys.exit(_fail(f"{path}{error.strerror or error}{hint}", 1))
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("evofeed"):
                raise
            sys.exit(_fail(f"{name} needs {error.name}: pip install 'evofeed[all]'", 1))
        except KeyboardInterrupt:
            sys.exit(_fail("interrupted", 130))
        except SystemExit as end:
            if end.code == 130:  # Typer's exit code for Ctrl-C
                _fail("interrupted", 130)
            raise


def _command(name: str, words: list[str]) -> tuple[str, str]:
    """Module and attribute of a command: the service's if one of its arguments is a URL."""
    module, attribute, subcommands = BY_URL.get(name, ("", "", frozenset()))
    has_url = any(word.startswith(("http://", "https://")) for word in words)
    by_url_alone = " ".join([name, *words[:1]]) in BY_URL_ALONE
    if module and (by_url_alone or (has_url and (not subcommands or words[0] in subcommands))):
        return module, attribute
    return COMMANDS[name][:2]


def _load(module: str, attribute: str, name: str) -> Any:
    """The Typer app behind a command; a plain function becomes an app of one command."""
    target: Any = getattr(importlib.import_module(module), attribute)
    if isinstance(target, typer.Typer):
        return target
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(target)
    return app


def _is_wrong_call(error: ValueError) -> bool:
    """True if a `raise` of evofeed's code raised it; one of `int("x")` or a library is a bug."""
    entry: Any = error.__traceback__
    while entry.tb_next:
        entry = entry.tb_next
    frame, instruction = entry.tb_frame, entry.tb_lasti
    in_evofeed = str(frame.f_globals["__name__"]).startswith("evofeed.")
    return in_evofeed and opname[frame.f_code.co_code[instruction]] == "RAISE_VARARGS"


def _fail(message: str, code: int) -> int:
    print(f"evofeed: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
