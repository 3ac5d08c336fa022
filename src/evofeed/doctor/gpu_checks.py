"""GPUs: driver, NCCL and its variables, links between cards, affinity, clocks and power.

Sources: `nvidia-smi --help-query-gpu`, the legend of `nvidia-smi topo -m`, NCCL's user guide
(environment variables), CUDA's release notes (table of drivers).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import combinations

from evofeed.doctor.checks import Check, Texts, names

_DRIVERS = {11: 450, 12: 525, 13: 580}
"""The oldest driver of each CUDA, by major number."""
_SLOWED = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "temperature",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}
"""Bits of the reasons why a clock is down that are somebody's business."""
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


def gpu_checks(texts: Texts) -> list[Check]:
    """Every line about cards and what connects them, in reading order."""
    return [
        *driver(texts),
        *nccl(texts),
        *cards(texts),
        *links_between_cards(texts),
        *slowed(texts),
    ]


def gpu_rows(texts: Texts) -> list[dict[str, str]]:
    """A row per card: field, without its unit, to value."""
    lines = csv.reader(texts.get("gpus", "").splitlines(), skipinitialspace=True)
    head, *rows = [line for line in lines if line] or [[]]
    known = [re.sub(r" \[.*\]$", "", name.strip()) for name in head]
    return [dict(zip(known, (cell.strip() for cell in row), strict=False)) for row in rows]


def driver(texts: Texts) -> Iterator[Check]:
    """Whether the driver knows torch's CUDA, and torch the driver's cards."""
    rows = gpu_rows(texts)
    version = rows[0].get("driver_version", "") if rows else ""
    if not version:
        return
    cuda = texts.get("cuda", "")
    oldest = _DRIVERS.get(int(cuda.partition(".")[0])) if cuda else None
    old = oldest is not None and int(version.partition(".")[0]) < oldest
    yield Check(
        "driver",
        f"{version}, torch of CUDA {cuda or 'none'}",
        f"CUDA {cuda} needs driver {oldest} or newer: update it, or install torch of an older CUDA"
        if old
        else "",
    )
    seen = int(texts.get("torch_gpus", len(rows)))
    if 0 < seen < len(rows) and "CUDA_VISIBLE_DEVICES" not in texts.get("environment", ""):
        to_do = "the others are in use exclusively (`nvidia-smi -c 0`) or not in this container"
        yield Check("cards in torch", f"{seen} of {len(rows)}", to_do)


def nccl(texts: Texts) -> Iterator[Check]:
    """NCCL's version, and variables that somebody may have forgotten."""
    if "nccl" in texts:
        yield Check("NCCL", texts["nccl"])
    for line in texts.get("environment", "").splitlines():
        name, _, value = line.partition("=")
        pattern, cost = _HARMFUL.get(name, ("", ""))
        harmful = bool(pattern and re.fullmatch(pattern, value, re.IGNORECASE))
        yield Check(name, value, f"{cost}: unset it, unless you look for a fault" * harmful)


def cards(texts: Texts) -> Iterator[Check]:
    """Different models, MIG, memory errors, narrow slots, persistence."""
    rows = gpu_rows(texts)
    models = dict.fromkeys(row.get("name", "") for row in rows)
    if rows:
        to_do = "the slowest sets the pace of all: CUDA_VISIBLE_DEVICES with one model"
        yield Check("cards", f"{len(rows)} x {names(models)}", to_do * (len(models) > 1))

    def among(name: str, wrong: str) -> str:
        return names(row["index"] for row in rows if row.get(name) == wrong)

    if mig := among("mig.mode.current", "Enabled"):
        to_do = "parts of cards cannot exchange by NVLink: `nvidia-smi -mig 0` to train on several"
        yield Check("MIG", f"on: GPU {mig}", to_do)
    for row in rows:
        errors = row.get("ecc.errors.uncorrected.volatile.total", "")
        if errors.isdigit() and int(errors):
            to_do = "drain the card and reset it; exchange it if they come back"
            yield Check(f"memory of GPU {row['index']}", f"{errors} uncorrected errors", to_do)


def links_between_cards(texts: Texts) -> Iterator[Check]:
    """How each pair of cards is connected."""
    lines = [
        [cell.strip() for cell in re.sub(r"\x1b\[[0-9;]*m", "", line).split("\t")]
        for line in texts.get("topology", "").splitlines()
    ]  # `nvidia-smi topo -m`: columns are separated by tabs
    head = next((line for line in lines if "GPU0" in line[1:]), [])
    gpus = [name for name in head if re.fullmatch(r"GPU\d+", name)]
    rows = {line[0]: dict(zip(head, line, strict=False)) for line in lines if line[0] in gpus}
    pairs = {(a, b): rows[a].get(b, "") for a, b in combinations(gpus, 2) if a in rows}
    if not pairs:
        return
    kinds = names(sorted(set(pairs.values())))
    far = [f"{a}-{b} {kind}" for (a, b), kind in pairs.items() if not kind.startswith(_NEAR)]
    mixed = any(kind.startswith("NV") for kind in pairs.values()) and len(far) > 0
    to_do = ""
    if mixed:
        to_do = (
            "let ranks that share a sample (`axial`) be cards that are linked: CUDA_VISIBLE_DEVICES"
        )
    elif far:
        to_do = (
            "no NVLink, and through the CPU: keep `axial: 1`, and see in `evofeed report` what "
            "exchanges cost"
        )
    more = f" and {len(far) - _SHOWN} more" if len(far) > _SHOWN else ""
    shown = f" ({names(far[:_SHOWN])}{more})" if far else ""
    yield Check("links between cards", kinds + shown, to_do)


def slowed(texts: Texts) -> Iterator[Check]:
    """Clocks that are held down now."""
    for row in gpu_rows(texts):
        reasons = next((v for k, v in row.items() if k.endswith("_reasons.active")), "")
        bits = int(reasons, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", reasons) else 0
        if why := [said for bit, said in _SLOWED.items() if bits & bit]:
            to_do = "look at cooling, power supply and power limits before you measure anything"
            yield Check(f"GPU {row['index']} is slowed down", names(why), to_do)
