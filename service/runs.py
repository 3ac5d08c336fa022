"""Training runs: folders that people registered, each with a dataset it is about.

A run is seen by whoever may see its dataset. Its folder was written by others:
files are regular, of a limited size, and nothing in them is taken for granted.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from evofeed.run_files import RUN, STEPS, STRUCTURE, parse_steps
from evofeed.service.access.audit import record
from evofeed.service.database.database import Database
from evofeed.service.database.tables import DatasetRow, RunRow
from evofeed.service.problems import Problem
from evofeed.store.inner import open_regular
from evofeed.structure_text import ca_of_mmcif

_MAX_STEPS: Final = 64 << 20  # bytes of the last steps that are read
_MAX_FILE: Final = 16 << 20
_MAX_PICTURES: Final = 24
_PICTURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\.png")
_TERMS: Final = 40  # curves of one run


def add_run(
    database: Database, dataset: DatasetRow, name: str, folder: str, words: str, principal: str
) -> None:
    """Register a run's folder.

    Raises:
        Problem: 409, the name is taken; 422, there is no run in the folder.
    """
    if not (Path(folder) / STEPS).is_file():
        raise Problem(
            422,
            "no_run",
            f"there is no {STEPS} in {folder[:200]!r}",
            next="give the folder that `evofeed train --out` wrote",
        )
    row = RunRow(
        name=name,
        dataset_id=dataset.id,
        folder=os.path.realpath(folder),
        description=words,
        created_at=time.time(),
        principal=principal,
    )
    try:
        with database.write() as session:
            session.add(row)
            record(session, principal, "run.register", name, dataset=dataset.name)
    except IntegrityError:
        raise Problem(
            409, "name_taken", f"run {name!r} exists", next="choose another name"
        ) from None


def forget_run(database: Database, name: str, principal: str) -> None:
    """Forget a run's name; its folder stays."""
    with database.write() as session:
        if row := session.get(RunRow, name):
            session.delete(row)
            record(session, principal, "run.forget", name)


def find_run(database: Database, name: str) -> tuple[RunRow, str]:
    """A run and the name of its dataset.

    Raises:
        Problem: 404.
    """
    query = select(RunRow, DatasetRow.name).join(DatasetRow, RunRow.dataset_id == DatasetRow.id)
    with database.read() as session:
        found = session.execute(query.where(RunRow.name == name)).one_or_none()
    if found is None:
        raise Problem(404, "not_found", f"no run {name!r}", next="see /ui/runs")
    return found[0], found[1]


def list_runs(
    database: Database, only: frozenset[str] | None, limit: int = 200
) -> list[tuple[RunRow, str]]:
    """Runs with their datasets' names, newest first; `only` those of these datasets."""
    query = select(RunRow, DatasetRow.name).join(DatasetRow, RunRow.dataset_id == DatasetRow.id)
    if only is not None:
        query = query.where(DatasetRow.name.in_(sorted(only)))
    with database.read() as session:
        found = session.execute(query.order_by(RunRow.created_at.desc()).limit(limit))
        return [(row[0], row[1]) for row in found]


def read_curves(folder: str) -> dict[str, tuple[list[int], list[float | None]]]:
    """Every number of a run's steps by name: steps, and values of which None is a gap."""
    data = _read(Path(folder) / STEPS, _MAX_STEPS, tail=True)
    curves: dict[str, tuple[list[int], list[float | None]]] = {}
    for line in parse_steps(data.decode(errors="replace")):
        values = {name: line.get(name) for name in ("loss", "norm", "rate")}
        for group in ("terms", "metrics"):
            more = line.get(group)
            if isinstance(more, Mapping):
                values |= {f"{group}: {name}": value for name, value in more.items()}
        for name, value in values.items():
            if name not in curves and (value is None or len(curves) >= _TERMS):
                continue
            steps, found = curves.setdefault(name, ([], []))
            steps.append(int(line["step"]))
            found.append(_number(value))
    return {name: curve for name, curve in curves.items() if any(curve[1])}


def read_facts(folder: str) -> dict[str, str]:
    """What a run says of itself, in words."""
    try:
        facts = json.loads(_read(Path(folder) / RUN, _MAX_FILE))
    except (ValueError, RecursionError, Problem):
        return {}
    if not isinstance(facts, dict):
        return {}
    config = facts.get("config")
    known = {"preset": config.get("preset")} if isinstance(config, dict) else {}
    names = ("date", "command", "device", "world_size", "steps", "seconds", "parameters", "dataset")
    known |= {name: facts.get(name) for name in names}
    return {name: str(value)[:300] for name, value in known.items() if value not in (None, "")}


def read_structure(folder: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Predicted and true CA atoms of the first validated chain, `[n, 3]` each."""
    try:
        data = _read(Path(folder) / STRUCTURE, _MAX_FILE)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(item.file_size for item in archive.infolist()) > 4 * _MAX_FILE:
                return None
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            pred, true = (np.asarray(arrays[name], float) for name in ("pred", "true"))
    except (Problem, ValueError, KeyError, TypeError, OSError, zipfile.BadZipFile):
        return None
    fits = pred.shape == true.shape and pred.ndim == 2 and pred.shape[1] == 3
    return (pred, true) if fits else None


def read_prediction(folder: str, chain_id: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Residue numbers from 1, CA atoms `[n, 3]` and confidence of `predictions/ID.cif`, if any."""
    try:
        data = _read(Path(folder) / "predictions" / f"{chain_id}.cif", _MAX_FILE)
        return ca_of_mmcif(data.decode(errors="replace"))
    except (Problem, ValueError):
        return None


def pictures_of(folder: str) -> list[str]:
    """Names of the PNG files in a run's folder."""
    try:
        with os.scandir(folder) as entries:
            found = [e.name for e in entries if _PICTURE.fullmatch(e.name) and e.is_file()]
    except OSError:
        return []
    return sorted(found)[:_MAX_PICTURES]


def read_picture(folder: str, name: str) -> bytes:
    """A PNG file of a run's folder.

    Raises:
        Problem: 404.
    """
    data = _read(Path(folder) / name, _MAX_FILE) if name in pictures_of(folder) else b""
    if not data.startswith(b"\x89PNG"):
        raise Problem(404, "not_found", f"no picture {name[:80]!r}", next="see the run's page")
    return data


def _read(path: Path, most: int, *, tail: bool = False) -> bytes:
    """A regular file below its folder, or its last bytes.

    Raises:
        Problem: 404, it is not there, is no file, is a link, or is too large.
    """
    try:
        if path.resolve() != path:  # its folder was resolved when it was registered
            raise OSError("a link")
        with os.fdopen(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > most and not tail:
                raise OSError("too large")
            file.seek(max(0, size - most))
            return file.read(most)
    except OSError as error:
        why = error.strerror or str(error)
        raise Problem(
            404, "run_file_missing", f"{path.name}: {why}", next="look into the run's folder"
        ) from None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and abs(number) < 1e30 else None
