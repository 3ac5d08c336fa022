"""The check-list: what a machine's texts say of its memory, driver and variables, and what to do.

Sources: NCCL's user guide (environment variables), `nvidia-smi --help-query-gpu`, CUDA's release
notes (table of drivers).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Texts = Mapping[str, str]
"""What a machine says of itself, by the names of `machine_texts`; what it lacks is absent."""

_DRIVERS = {11: 450, 12: 525, 13: 580}
"""The oldest driver of each CUDA, by major number."""
_HARMFUL = {
    "NCCL_P2P_DISABLE": ("1", "cards exchange through host memory"),
    "NCCL_SHM_DISABLE": ("1", "processes of one host exchange through the network"),
    "NCCL_IB_DISABLE": ("1", "hosts exchange by TCP"),
    "NCCL_NET_GDR_LEVEL": ("LOC|0", "no GPUDirect RDMA"),
    "NCCL_DEBUG": ("INFO|TRACE", "every communicator writes pages of log"),
    "NCCL_SOCKET_IFNAME": ("lo", "other hosts cannot be reached"),
    "NCCL_NVLS_ENABLE": ("0", "NVSwitch does no sums"),
    "CUDA_LAUNCH_BLOCKING": ("1", "every launch waits for its end, and nothing overlaps"),
    "TORCH_NCCL_BLOCKING_WAIT": ("1", "exchanges block the host"),
}
"""Variables that help to find a fault and are forgotten afterwards: value, and what it costs."""


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, what was found, and what to do about it; nothing to do: all is well."""

    name: str
    found: str
    to_do: str = ""


def check_list(texts: Texts) -> list[Check]:
    """Every line about memory, driver and variables, in reading order."""
    return [*_memory(texts), *_driver(texts), *_variables(texts)]


def _memory(texts: Texts) -> Iterator[Check]:
    if "shm" in texts:
        size, left = (int(number) / 2**30 for number in texts["shm"].split())
        to_do = (
            "few for Ray, the loader and NCCL: start containers with --shm-size=8g, or "
            "`mount -o remount,size=8g /dev/shm`"
        )
        said = f"{left:.1f} of {size:.1f} GiB free"
        yield Check("shared memory", said, to_do if left < 1 else "")


def _driver(texts: Texts) -> Iterator[Check]:
    """Whether the driver knows torch's CUDA, and torch the driver's cards."""
    versions = texts.get("drivers", "").splitlines()  # a line a card
    if not versions:
        return
    version, cuda = versions[0].strip(), texts.get("cuda", "")
    oldest = _DRIVERS.get(int(cuda.partition(".")[0])) if cuda else None
    old = oldest is not None and int(version.partition(".")[0]) < oldest
    to_do = f"CUDA {cuda} needs driver {oldest} or newer: update it, or install torch of an older"
    yield Check("driver", f"{version}, torch of CUDA {cuda or 'none'}", f"{to_do} CUDA" * old)
    seen = int(texts.get("torch_gpus", len(versions)))
    if 0 < seen < len(versions) and "CUDA_VISIBLE_DEVICES" not in texts.get("environment", ""):
        to_do = "the others are in use exclusively (`nvidia-smi -c 0`) or not in this container"
        yield Check("cards in torch", f"{seen} of {len(versions)}", to_do)


def _variables(texts: Texts) -> Iterator[Check]:
    """NCCL's version, and variables that somebody may have forgotten."""
    if "nccl" in texts:
        yield Check("NCCL", texts["nccl"])
    for line in texts.get("environment", "").splitlines():
        name, _, value = line.partition("=")
        pattern, cost = _HARMFUL.get(name, ("", ""))
        harmful = bool(pattern and re.fullmatch(pattern, value, re.IGNORECASE))
        yield Check(name, value, f"{cost}: unset it, unless you look for a fault" * harmful)
