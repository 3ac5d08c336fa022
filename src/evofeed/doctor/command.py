"""`evofeed doctor`: a report of this machine's setup, for bug reports, with advice.

Sources of its checks: NCCL's user guide (environment variables), `nvidia-smi --help-query-gpu`,
CUDA's release notes (table of drivers).
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer

from evofeed.base.options import Json

_EXTRAS = {
    "base": "numpy numba pyarrow xxhash typer rich",
    "train": "torch triton safetensors pyyaml matplotlib",
    "featurize": "biopython gemmi ray zstandard pyhmmer",
    "service": "fastapi uvicorn sqlalchemy alembic psycopg pydantic-settings jinja2",
    "s3": "obstore",
}
GPU_TESTED = {"torch": "2.11", "triton": "3.6"}
"""Versions with which the GPU tests last passed, as in `constraints-gpu.txt`."""
_PROGRAMS = ("hhblits", "hhsearch", "mmseqs")
Texts = Mapping[str, str]
"""Raw texts about a machine by the names of `machine_texts`; absent ones are unknown."""

_DRIVERS = {11: 450, 12: 525, 13: 580}
"""Oldest driver by major version of CUDA."""
_HARMFUL = {
    "NCCL_P2P_DISABLE": ("1", "cards exchange through host memory"),
    "NCCL_SHM_DISABLE": ("1", "processes of one host exchange through the network"),
    "NCCL_IB_DISABLE": ("1", "hosts exchange by TCP"),
    "NCCL_NET_GDR_LEVEL": ("LOC|0", "no GPUDirect RDMA"),
    "NCCL_DEBUG": ("INFO|TRACE", "every communicator writes pages of log"),
    "NCCL_SOCKET_IFNAME": ("lo", "other hosts cannot be reached"),
    "NCCL_NVLS_ENABLE": ("0", "NVSwitch does not reduce"),
    "CUDA_LAUNCH_BLOCKING": ("1", "every kernel launch waits for its end, and nothing overlaps"),
    "TORCH_NCCL_BLOCKING_WAIT": ("1", "exchanges block the host"),
}
"""Variables for debugging that are often left set: pattern of the value, and its effect."""


def doctor(as_json: Json = False) -> None:
    """Check what is installed, what this machine can do, and what would fail on it.

    Paste it into a bug report. Exit code 1 if the base install is incomplete.

    Example: evofeed doctor --json > machine.json
    """
    report = examine()
    if as_json:
        print(json.dumps(report, indent=1))
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table(show_header=False, title=f"evofeed {report['evofeed']}")
        for name in ("python", "system", "cores"):
            table.add_row(name, str(report[name]))
        table.add_row("memory", f"{report['memory_gb']} GB")
        table.add_row("free disk", f"{report['disk_free_gb']} GB")
        table.add_row("open files", str(report["open_files"]))
        table.add_row("NVIDIA driver", "yes" if report["nvidia_driver"] else "none")
        table.add_row("GPUs", ", ".join(report["gpus"]) or report["gpu_trouble"] or "none")
        for check in report["checks"]:
            table.add_row(check["name"], check["found"])
        for extra, versions in report["packages"].items():
            absent = [name for name, version in versions.items() if version is None]
            hint = f"  missing {', '.join(absent)}: pip install 'evofeed[{extra}]'"
            have = " ".join(f"{n} {v}" for n, v in versions.items() if v is not None)
            table.add_row(extra, have + (hint if absent else ""))
        last = " ".join(f"{name} {version}" for name, version in GPU_TESTED.items())
        table.add_row("GPU tests passed with", last)
        for name, path in report["programs"].items():
            table.add_row(name, path or "not on the PATH")
        Console(markup=False).print(table)
        for line in report["advice"]:
            print(f"- {line}")
    if None in report["packages"]["base"].values():
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Versions, cores, memory, disk, GPUs, the check-list, advice: JSON-ready."""
    from evofeed import __version__

    checks = check_list(machine_texts())
    gpus, error = _gpus()
    report: dict[str, Any] = {
        "evofeed": __version__,
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(_memory() / 1e9, 1),
        "disk_free_gb": round(shutil.disk_usage(".").free / 1e9, 1),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "gpu_tested": GPU_TESTED,
        "nvidia_driver": Path("/dev/nvidiactl").exists(),
        "gpus": gpus,
        "gpu_trouble": error,
        "programs": {name: shutil.which(name) for name in _PROGRAMS},
        "packages": {
            extra: {name: _version(name) for name in names.split()}
            for extra, names in _EXTRAS.items()
        },
        "checks": [asdict(check) for check in checks],
    }
    return report | {"advice": advice(report, checks)}


def advice(report: Mapping[str, Any], checks: Sequence[Check] = ()) -> list[str]:
    """Problems of a machine, each with the remedy.

    Args:
        checks: lines of the check-list; those with a remedy are repeated.
    """
    lines = []
    train, gpus = report["packages"]["train"], report["gpus"]
    if report["nvidia_driver"] and train["torch"] and not gpus:
        lines.append(
            f"there is an NVIDIA driver, but torch {train['torch']} sees no GPU"
            + (f" ({report['gpu_trouble']})" if report.get("gpu_trouble") else "")
            + ": install a CUDA build of torch that this driver supports (pytorch.org), check "
            "CUDA_VISIBLE_DEVICES, and on machines with NVSwitch start nvidia-fabricmanager"
        )
    untested = [
        f"{name} {train[name]}"
        for name, tested in GPU_TESTED.items()
        if train[name] and not train[name].startswith(f"{tested}.")
    ]
    if gpus and untested:
        last = " and ".join(f"{name} {version}" for name, version in GPU_TESTED.items())
        lines.append(
            f"{' and '.join(untested)}: the GPU tests last passed with {last}; "
            f"pip install {' '.join(f'{name}=={v}.0' for name, v in GPU_TESTED.items())}"
        )
    if gpus and not train["triton"]:
        lines.append("there is a GPU but no triton, so no fused kernels: pip install triton")
    if any(float(gpu.rsplit(" ", 1)[1]) < 8.0 for gpu in gpus):
        lines.append("a GPU below compute 8.0 has no bfloat16: train with `precision: fp16`")
    if report["open_files"] < 4096:
        lines.append(f"{report['open_files']} open files are few for Ray: ulimit -n 65536")
    if report["memory_gb"] < 8:
        lines.append("chains may take 8 GiB each by default: featurize with --memory and --workers")
    return lines + [f"{c.name}, {c.found}: {c.to_do}" for c in checks if c.to_do]


def machine_texts() -> dict[str, str]:
    """Raw texts about this machine by name; absent if empty.

    `drivers` has one line for each card, of nvidia-smi; `shm` is size and free bytes of /dev/shm;
    `nccl`, `cuda` and `torch_gpus` are of torch; `environment` has NCCL's variables.
    """
    texts = {"drivers": _drivers()}
    if Path("/dev/shm").is_dir():
        use = shutil.disk_usage("/dev/shm")
        texts["shm"] = f"{use.total} {use.free}"
    texts["environment"] = "\n".join(
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith(("NCCL_", "TORCH_NCCL_", "CUDA_LAUNCH", "CUDA_VISIBLE"))
    )
    if _version("torch"):
        import torch

        texts |= {"cuda": torch.version.cuda or "", "torch_gpus": str(torch.cuda.device_count())}
        if torch.cuda.is_available():
            version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
            texts["nccl"] = ".".join(map(str, version))
    return {name: text for name, text in texts.items() if text.strip()}


def _drivers() -> str:
    """Output of nvidia-smi; empty if it is missing or fails."""
    query = ["nvidia-smi", "--format=csv,noheader", "--query-gpu=driver_version"]
    try:
        result = subprocess.run(query, capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout if result.returncode == 0 else ""


def _memory() -> int:
    """Bytes this process may use: the machine's, or the limit of its container."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else ""
    return min(machine, int(text)) if text.isdigit() else machine


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpus() -> tuple[list[str], str]:
    """The cards that torch sees, and its error if it cannot use them."""
    if not _version("torch"):
        return [], ""
    import torch

    try:
        cards = [*map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))]
    except RuntimeError as error:  # there are cards, but the driver cannot start them
        return [], str(error).partition("\n")[0]
    return [
        f"{gpu.name}, {gpu.total_memory / 1e9:.0f} GB, compute {gpu.major}.{gpu.minor}"
        for gpu in cards
    ], ""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the check-list: subject, value, and the remedy if there is a problem."""

    name: str
    found: str
    to_do: str = ""


def check_list(texts: Texts) -> list[Check]:
    """Every line about memory, driver and variables, in reading order."""
    return [*_shared_memory(texts), *_driver(texts), *_variables(texts)]


def _shared_memory(texts: Texts) -> Iterator[Check]:
    if "shm" in texts:
        size, free = (int(number) / 2**30 for number in texts["shm"].split())
        to_do = (
            "few for Ray, the loader and NCCL: start containers with --shm-size=8g, or "
            "`mount -o remount,size=8g /dev/shm`"
        )
        yield Check(
            "shared memory", f"{free:.1f} of {size:.1f} GiB free", to_do if free < 1 else ""
        )


def _driver(texts: Texts) -> Iterator[Check]:
    """Checks that the driver supports torch's CUDA, and that torch sees all cards."""
    versions = texts.get("drivers", "").splitlines()  # a line a card
    if not versions:
        return
    version, cuda = versions[0].strip(), texts.get("cuda", "")
    oldest = _DRIVERS.get(int(cuda.partition(".")[0])) if cuda else None
    outdated = oldest is not None and int(version.partition(".")[0]) < oldest
    to_do = f"CUDA {cuda} needs driver {oldest} or newer: update it, or install torch of an older"
    yield Check("driver", f"{version}, torch of CUDA {cuda or 'none'}", f"{to_do} CUDA" * outdated)
    visible = int(texts.get("torch_gpus", len(versions)))
    if 0 < visible < len(versions) and "CUDA_VISIBLE_DEVICES" not in texts.get("environment", ""):
        to_do = "the others are in use exclusively (`nvidia-smi -c 0`) or not in this container"
        yield Check("cards in torch", f"{visible} of {len(versions)}", to_do)


def _variables(texts: Texts) -> Iterator[Check]:
    """NCCL's version, and its variables that are set."""
    if "nccl" in texts:
        yield Check("NCCL", texts["nccl"])
    for line in texts.get("environment", "").splitlines():
        name, _, value = line.partition("=")
        pattern, effect = _HARMFUL.get(name, ("", ""))
        harmful = bool(pattern and re.fullmatch(pattern, value, re.IGNORECASE))
        yield Check(name, value, f"{effect}: unset it, unless you are debugging" * harmful)
