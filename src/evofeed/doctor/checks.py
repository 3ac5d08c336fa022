"""The check-list: what a machine's texts say of host, network and cards, and what to do about it.

Sources: NCCL's user guide (troubleshooting, environment variables), proc(5), capabilities(7), the
kernel's Documentation/ABI/stable/sysfs-class-infiniband, `nvidia-smi --help-query-gpu`, the legend
of `nvidia-smi topo -m`, CUDA's release notes (table of drivers).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

Texts = Mapping[str, str]
"""What a machine says of itself, by the names of `machine_texts`; what it lacks is absent."""

_IPC_LOCK = 14  # the bit of CAP_IPC_LOCK
_DRIVERS = {11: 450, 12: 525, 13: 580}
"""The oldest driver of each CUDA, by major number."""
_NEAR = ("NV", "PIX", "PXB")  # what does not pass through the CPU
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
_SHOWN = 4  # pairs of cards in a line


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, what was found, and what to do about it; nothing to do: all is well."""

    name: str
    found: str
    to_do: str = ""


def check_list(texts: Texts) -> list[Check]:
    """Every line about the host, its network and its cards, in reading order."""
    ports: dict[str, dict[str, str]] = {}
    for line in texts.get("infiniband", "").splitlines():  # `mlx5_0/1/state: 4: ACTIVE`
        path, _, value = line.partition(": ")
        port, _, name = path.rpartition("/")
        ports.setdefault(port, {})[name] = value.rpartition(": ")[2].strip()
    head, *lines = [*csv.reader(texts.get("gpus", "").splitlines(), skipinitialspace=True)] or [[]]
    fields = [re.sub(r" \[.*\]$", "", name) for name in head]  # without units
    cards = [dict(zip(fields, line, strict=False)) for line in lines if line]
    return [
        *_memory(texts, bool(ports)),
        *_network(texts, ports),
        *_driver(texts, cards),
        *_variables(texts),
        *_cards(cards),
        *_links(texts),
    ]


def _memory(texts: Texts, rdma: bool) -> Iterator[Check]:
    """What a process may pin (RDMA registers its buffers so), and /dev/shm."""
    if found := re.search(r"^Max locked memory\s+(\S+)", texts.get("limits", ""), re.MULTILINE):
        held = re.search(r"^CapEff:\s*(\S+)", texts.get("status", ""), re.MULTILINE)
        capable = bool(int(held[1], 16) >> _IPC_LOCK & 1) if held else False
        free = found[1] == "unlimited"
        limit = found[1] if free else f"{int(found[1]) / 2**20:.0f} MiB"
        to_do = (
            "NCCL cannot register memory for RDMA: `* - memlock unlimited` in "
            "/etc/security/limits.d, containers with `--ulimit memlock=-1 --cap-add IPC_LOCK`, or "
            "`setcap cap_ipc_lock=ep` on the python binary itself, not on a link to it"
        )
        said = f"{limit}, {'with' if capable else 'without'} CAP_IPC_LOCK"
        yield Check("locked memory", said, to_do if rdma and not capable and not free else "")
    if "shm" in texts:
        size, left = (int(number) / 2**30 for number in texts["shm"].split())
        to_do = (
            "few for Ray, the loader and NCCL: start containers with --shm-size=8g, or "
            "`mount -o remount,size=8g /dev/shm`"
        )
        said = f"{left:.1f} of {size:.1f} GiB free"
        yield Check("shared memory", said, to_do if left < 1 else "")


def _network(texts: Texts, ports: Mapping[str, Mapping[str, str]]) -> Iterator[Check]:
    """Whether all RDMA ports are up, how fast, and whether they read GPU memory themselves."""
    if not ports:
        if "gpus" in texts:
            yield Check("RDMA", "no device: between hosts NCCL would use TCP; one host needs none")
        return
    for layer in dict.fromkeys(port.get("link_layer", "") for port in ports.values()):
        own = [port for port in ports.values() if port.get("link_layer", "") == layer]
        up = [port for port in own if port.get("state") == "ACTIVE"]
        total = sum(float(port.get("rate", "0").split(" ")[0] or 0) for port in up)  # `400 Gb/sec`
        name = "RoCE" if layer == "Ethernet" else layer
        yield Check(name, f"{len(up)} of {len(own)} ports active, {total:.0f} Gb/s in all")
    for name, port in ports.items():
        if (state := port.get("state", "")) != "ACTIVE":
            to_do = "look at cable and switch, or leave the device out: NCCL_IB_HCA=^device"
            if state == "INIT":
                to_do = "the link is up, but no subnet manager answers: start opensm or ask for it"
            yield Check(f"port {name}", f"{state}, {port.get('phys_state', '')}", to_do)
    if "gpus" in texts:
        modules = {line.split(" ")[0] for line in texts.get("modules", "").splitlines()}
        how = ", ".join(modules & {"nvidia_peermem", "nv_peer_mem"})
        if not how and "Open Kernel Module" in texts.get("driver", ""):
            how = "DMA-BUF of the open kernel modules"
        to_do = "every byte goes through host memory: `modprobe nvidia_peermem`"
        none = "neither nvidia_peermem nor the open kernel modules"
        yield Check("GPUDirect RDMA", how or none, "" if how else to_do)


def _driver(texts: Texts, cards: list[dict[str, str]]) -> Iterator[Check]:
    """Whether the driver knows torch's CUDA, and torch the driver's cards."""
    if not cards:
        return
    version, cuda = cards[0].get("driver_version", ""), texts.get("cuda", "")
    oldest = _DRIVERS.get(int(cuda.partition(".")[0])) if cuda else None
    old = oldest is not None and int(version.partition(".")[0]) < oldest
    to_do = f"CUDA {cuda} needs driver {oldest} or newer: update it, or install torch of an older"
    yield Check("driver", f"{version}, torch of CUDA {cuda or 'none'}", f"{to_do} CUDA" * old)
    seen = int(texts.get("torch_gpus", len(cards)))
    if 0 < seen < len(cards) and "CUDA_VISIBLE_DEVICES" not in texts.get("environment", ""):
        to_do = "the others are in use exclusively (`nvidia-smi -c 0`) or not in this container"
        yield Check("cards in torch", f"{seen} of {len(cards)}", to_do)


def _variables(texts: Texts) -> Iterator[Check]:
    """NCCL's version, and variables that somebody may have forgotten."""
    if "nccl" in texts:
        yield Check("NCCL", texts["nccl"])
    for line in texts.get("environment", "").splitlines():
        name, _, value = line.partition("=")
        pattern, cost = _HARMFUL.get(name, ("", ""))
        harmful = bool(pattern and re.fullmatch(pattern, value, re.IGNORECASE))
        yield Check(name, value, f"{cost}: unset it, unless you look for a fault" * harmful)


def _cards(cards: list[dict[str, str]]) -> Iterator[Check]:
    """Different models, and cards in parts."""
    if cards:
        models = dict.fromkeys(card["name"] for card in cards)
        to_do = "the slowest sets the pace of all: CUDA_VISIBLE_DEVICES with one model"
        yield Check("cards", f"{len(cards)} x {', '.join(models)}", to_do * (len(models) > 1))
    if mig := [card["index"] for card in cards if card.get("mig.mode.current") == "Enabled"]:
        to_do = "parts of cards cannot exchange by NVLink: `nvidia-smi -mig 0` to train on several"
        yield Check("MIG", f"on: GPU {', '.join(mig)}", to_do)


def _links(texts: Texts) -> Iterator[Check]:
    """How each pair of cards is connected."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", texts.get("topology", ""))  # columns end with tabs
    lines = [[cell.strip() for cell in line.split("\t")] for line in plain.splitlines()]
    head = next((line for line in lines if "GPU0" in line[1:]), [])
    gpus = [name for name in head if re.fullmatch(r"GPU\d+", name)]
    rows = {line[0]: dict(zip(head, line, strict=False)) for line in lines if line[0] in gpus}
    pairs = {(a, b): rows[a].get(b, "") for a, b in combinations(gpus, 2) if a in rows}
    if not pairs:
        return
    far = [f"{a}-{b} {kind}" for (a, b), kind in pairs.items() if not kind.startswith(_NEAR)]
    to_do = ""
    if far and any(kind.startswith("NV") for kind in pairs.values()):
        to_do = (
            "let ranks that share a sample (`axial`) be cards that are linked: CUDA_VISIBLE_DEVICES"
        )
    elif far:
        to_do = (
            "no NVLink, and through the CPU: keep `axial: 1`, and see in `evofeed report` what "
            "exchanges cost"
        )
    more = f" and {len(far) - _SHOWN} more" if len(far) > _SHOWN else ""
    shown = f" ({', '.join(far[:_SHOWN])}{more})" if far else ""
    yield Check("links between cards", ", ".join(sorted(set(pairs.values()))) + shown, to_do)
