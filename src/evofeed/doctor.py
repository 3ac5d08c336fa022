"""`evofeed doctor`: what this machine has, for a bug report or a first look."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
from typing import Annotated, Any

import typer

_EXTRAS = {
    "base": "numpy numba pyarrow xxhash typer rich",
    "train": "torch triton safetensors pyyaml matplotlib",
    "featurize": "biopython gemmi ray zstandard pyhmmer",
    "service": "fastapi uvicorn sqlalchemy alembic psycopg pydantic-settings jinja2 httpx",
    "s3": "obstore",
}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """What is installed and what this machine can do. Paste it into a bug report.

    Exit code 1 if the base install is incomplete.

    Example: evofeed doctor --json > machine.json
    """
    found = examine()
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table(show_header=False, title=f"evofeed {found['evofeed']}")
        for name, value in found.items():
            if name not in ("packages", "evofeed"):
                table.add_row(name, str(value))
        for extra, versions in found["packages"].items():
            absent = [name for name, version in versions.items() if version is None]
            hint = f"  missing {', '.join(absent)}: pip install 'evofeed[{extra}]'"
            have = " ".join(f"{n} {v}" for n, v in versions.items() if v is not None)
            table.add_row(extra, have + (hint if absent else ""))
        Console().print(table)
    if None in found["packages"]["base"].values():
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Versions, cores, memory, disk, GPUs: JSON-ready."""
    from evofeed import __version__

    return {
        "evofeed": __version__,
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "shared_memory_free_gb": round(shutil.disk_usage("/dev/shm").free / 1e9, 1),
        "disk_free_gb": round(shutil.disk_usage(".").free / 1e9, 1),
        "gpus": _gpus(),
        "packages": {
            extra: {name: _version(name) for name in names.split()}
            for extra, names in _EXTRAS.items()
        },
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpus() -> list[str]:
    if importlib.util.find_spec("torch") is None:
        return []
    import torch

    return [
        f"{gpu.name}, {gpu.total_memory / 1e9:.0f} GB, compute {gpu.major}.{gpu.minor}"
        for gpu in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    ]
