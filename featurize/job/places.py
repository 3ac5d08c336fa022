"""Where a job's ledger and report are, and how its paths are shown."""

from __future__ import annotations

import os
from pathlib import Path

from evofeed.base.errors import InputError
from evofeed.featurize.formats.reading import is_text


def ledger_url(given: str, dataset_uri: str) -> str:
    """The ledger that was asked for, or `jobs/ledger.sqlite` in a dataset on disk.

    A dataset elsewhere gets its ledger in `~/.local/state/evofeed/`, named after it.
    """
    if given:
        return given
    if "://" in dataset_uri and not dataset_uri.startswith("file://"):
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        name = dataset_uri.replace("://", "-").replace("/", "-").replace(":", "-")
        return str(state / "evofeed" / f"{name}.sqlite")
    return str(Path(dataset_uri.removeprefix("file://")) / "jobs" / "ledger.sqlite")


def report_path(url: str, dataset_uri: str, job_id: str) -> str:
    """Where the end report goes: beside the ledger, or where the ledger would be on disk."""
    database = url if url.startswith("sqlite:///") else ledger_url("", dataset_uri)
    folder = Path(database.removeprefix("sqlite:///")).parent
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder / f"{job_id[:16]}.report.json")


def absolute(uri: str) -> str:
    """A folder or file by its whole path, however it was written; other URIs as they are.

    Raises:
        InputError: a name in it is no text, so that no ledger can keep it.
    """
    path = uri.removeprefix("file://")
    path = path if "://" in path else str(Path(path).absolute())
    if not is_text(path):
        raise InputError("not UTF-8: rename it", path=path.encode(errors="replace").decode())
    return path


def relative(path: str | None, input_uri: str) -> str | None:
    """A path inside the input as seen from it; others as they are."""
    return path and path.removeprefix(f"{input_uri}/")
