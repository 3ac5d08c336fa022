"""What this machine says of itself, unread: files of /proc and /sys, and nvidia-smi."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_FILES = {
    "limits": "/proc/self/limits",
    "status": "/proc/self/status",
    "modules": "/proc/modules",
    "driver": "/proc/driver/nvidia/version",
}
_GPU_FIELDS = (
    "index,name,driver_version,mig.mode.current,{reasons},ecc.errors.uncorrected.volatile.total"
)
_SAYS = {
    "gpus": [
        ["--query-gpu=" + _GPU_FIELDS.format(reasons=name), "--format=csv,nounits"]
        for name in ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
    ],  # its name before driver 535
    "topology": [["topo", "-m"]],
}
_INFINIBAND = Path("/sys/class/infiniband")


def machine_texts() -> dict[str, str]:
    """Texts by name, without those that this machine lacks.

    `infiniband` is a line per file of `/sys/class/infiniband/*/ports/*`, `mlx5_0/1/state: 4:
    ACTIVE` for one; `shm` is size and free bytes of /dev/shm;
    `nccl`, `cuda` and `torch_gpus` are what torch says; `environment` has NCCL's variables.
    """
    found = {name: _read(Path(path)) for name, path in _FILES.items()}
    found |= {name: _first_answer(calls) for name, calls in _SAYS.items()}
    ports = sorted(_INFINIBAND.glob("*/ports/*"))
    found["infiniband"] = "\n".join(
        f"{port.parts[-3]}/{port.name}/{name}: {_read(port / name).strip()}"
        for port in ports
        for name in ("state", "phys_state", "rate", "link_layer")
    )
    if Path("/dev/shm").is_dir():
        use = shutil.disk_usage("/dev/shm")
        found["shm"] = f"{use.total} {use.free}"
    found["environment"] = "\n".join(
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith(("NCCL_", "TORCH_NCCL_", "CUDA_LAUNCH", "CUDA_VISIBLE"))
    )
    return {name: text for name, text in (found | _torch()).items() if text.strip()}


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _first_answer(calls: list[list[str]]) -> str:
    """What nvidia-smi says to the first of these that it knows."""
    program = shutil.which("nvidia-smi")
    for words in calls if program else []:
        try:
            done = subprocess.run(
                [str(program), *words], capture_output=True, text=True, errors="replace", timeout=60
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        if done.returncode == 0:
            return done.stdout
    return ""


def _torch() -> dict[str, str]:
    try:
        import torch
    except ImportError:
        return {}
    count = torch.cuda.device_count()
    version = torch.cuda.nccl.version() if count else ()  # type: ignore[no-untyped-call]
    return {
        "cuda": torch.version.cuda or "",
        "torch_gpus": str(count),
        "nccl": ".".join(map(str, version)),
    }
