"""Host and network: locked and shared memory, NUMA, InfiniBand or RoCE, GPUDirect RDMA.

Sources: NCCL's user guide (troubleshooting), proc(5), capabilities(7), the kernel's
Documentation/ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from evofeed.doctor.checks import Check, Texts, field, names

_IPC_LOCK = 14  # the bit of CAP_IPC_LOCK


class Port(NamedTuple):
    """A port of an RDMA device, as sysfs describes it."""

    name: str
    state: str
    physical: str
    gigabits: float
    layer: str


def host_checks(texts: Texts) -> list[Check]:
    """Every line about the host and its network, in reading order."""
    return [
        *locked_memory(texts),
        *shared_memory(texts),
        *rdma_ports(texts),
        *gpudirect(texts),
    ]


def locked_memory(texts: Texts) -> Iterator[Check]:
    """What a process may pin: RDMA registers its buffers so, CUDA's own pinning needs no limit."""
    limits = texts.get("limits", "")
    # name, soft, hard, unit
    found = re.search(r"^Max locked memory\s+(\S+)", limits, re.MULTILINE)
    if found is None:
        return
    capabilities = int(field(texts.get("status", ""), "CapEff") or "0", 16)
    capable = bool(capabilities >> _IPC_LOCK & 1)
    limit = found[1] if found[1] == "unlimited" else f"{int(found[1]) / 2**20:.0f} MiB"
    said = f"{limit}, {'with' if capable else 'without'} CAP_IPC_LOCK"
    fits = capable or found[1] == "unlimited" or not ports(texts)
    yield Check(
        "locked memory",
        said,
        ""
        if fits
        else "NCCL cannot register memory for RDMA: `* - memlock unlimited` in "
        "/etc/security/limits.d, containers with `--ulimit memlock=-1 --cap-add IPC_LOCK`, or "
        "`setcap cap_ipc_lock=ep` on the python binary itself, not on a link to it",
    )


def shared_memory(texts: Texts) -> Iterator[Check]:
    """/dev/shm: NCCL's buffers between processes of a host, the loader's, Ray's."""
    if "shm" not in texts:
        return
    size, free = (int(number) / 2**30 for number in texts["shm"].split())
    yield Check(
        "shared memory",
        f"{free:.1f} of {size:.1f} GiB free",
        ""
        if free >= 1
        else "few for Ray, the loader and NCCL: start containers with --shm-size=8g, or "
        "`mount -o remount,size=8g /dev/shm`",
    )


def ports(texts: Texts) -> list[Port]:
    """Ports of all RDMA devices."""
    values: dict[str, dict[str, str]] = {}
    for line in texts.get("infiniband", "").splitlines():
        path, _, value = line.partition(": ")
        port, _, name = path.rpartition("/")
        values.setdefault(port, {})[name] = value
    return [
        Port(
            port,
            said.get("state", "").partition(": ")[2],  # `4: ACTIVE`
            said.get("phys_state", "").partition(": ")[2],
            float(said.get("rate", "0").split(" ")[0] or 0),  # `400 Gb/sec (4X NDR)`
            said.get("link_layer", "").strip(),
        )
        for port, said in values.items()
    ]


def rdma_ports(texts: Texts) -> Iterator[Check]:
    """Whether all ports are up and equally fast."""
    all_ports = ports(texts)
    if not all_ports:
        if "gpus" in texts:
            yield Check("RDMA", "no device: between hosts NCCL would use TCP; one host needs none")
        return
    up = [port for port in all_ports if port.state == "ACTIVE"]
    for layer in dict.fromkeys(port.layer for port in all_ports):
        own = [port for port in up if port.layer == layer]
        name = "RoCE" if layer == "Ethernet" else layer
        total = sum(port.gigabits for port in own)
        count = sum(port.layer == layer for port in all_ports)
        yield Check(name, f"{len(own)} of {count} ports active, {total:.0f} Gb/s in all")
    for port in all_ports:
        if port.state == "INIT":
            to_do = "the link is up, but no subnet manager answers: start opensm or ask for it"
        elif port.state != "ACTIVE":
            to_do = "look at cable and switch, or leave the device out: NCCL_IB_HCA=^device"
        else:
            continue
        yield Check(f"port {port.name}", f"{port.state}, {port.physical}", to_do)


def gpudirect(texts: Texts) -> Iterator[Check]:
    """Whether network cards can read GPU memory themselves."""
    if not ports(texts) or "gpus" not in texts:
        return
    modules = {line.split(" ")[0] for line in texts.get("modules", "").splitlines()}
    peer = modules & {"nvidia_peermem", "nv_peer_mem"}
    open_modules = "Open Kernel Module" in texts.get("driver", "")
    how = names(peer) or ("DMA-BUF of the open kernel modules" if open_modules else "")
    yield Check(
        "GPUDirect RDMA",
        how or "neither nvidia_peermem nor the open kernel modules",
        "" if how else "every byte goes through host memory: `modprobe nvidia_peermem`",
    )
