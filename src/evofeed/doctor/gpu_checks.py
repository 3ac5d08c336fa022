"""GPUs: driver, NCCL and its variables, links between cards, affinity, clocks and power.

Sources: `nvidia-smi --help-query-gpu`, the legend of `nvidia-smi topo -m`, NCCL's user guide
(environment variables), CUDA's release notes (table of drivers).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

from evofeed.doctor.checks import Check, Texts, field, names, numbers_in

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


class Topology(NamedTuple):
    """`nvidia-smi topo -m`: how each card reaches each other device, and its cores."""

    links: Mapping[str, Mapping[str, str]]
    cores: Mapping[str, set[int]]


def gpu_checks(texts: Texts) -> list[Check]:
    """Every line about cards and what connects them, in reading order."""
    return [
        *driver(texts),
        *nccl(texts),
        *cards(texts),
        *links_between_cards(texts),
        *nvlinks(texts),
        *near_network(texts),
        *affinity(texts),
        *clocks(texts),
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
    if forgets := among("persistence_mode", "Disabled"):
        to_do = "the driver unloads between jobs and forgets limits: `nvidia-smi -pm 1`"
        yield Check("persistence mode", f"off: GPU {forgets}", to_do)
    for row in rows:
        errors = row.get("ecc.errors.uncorrected.volatile.total", "")
        if errors.isdigit() and int(errors):
            to_do = "drain the card and reset it; exchange it if they come back"
            yield Check(f"memory of GPU {row['index']}", f"{errors} uncorrected errors", to_do)
        width, most = row.get("pcie.link.width.current"), row.get("pcie.link.width.max")
        if width and most and width.isdigit() and most.isdigit() and int(width) < int(most):
            to_do = "sits in a narrower slot than it could use, or loosely: copies take longer"
            yield Check(f"slot of GPU {row['index']}", f"{width} of {most} PCIe lanes", to_do)


def topology(texts: Texts) -> Topology:
    """The matrix of `nvidia-smi topo -m`; its columns are separated by tabs."""
    lines = [
        [cell.strip() for cell in re.sub(r"\x1b\[[0-9;]*m", "", line).split("\t")]
        for line in texts.get("topology", "").splitlines()
    ]
    head = next((line for line in lines if "GPU0" in line[1:]), [])
    rows = {line[0]: line for line in lines if len(line) > 1 and line[0] in head}
    at = head.index("CPU Affinity") if "CPU Affinity" in head else None
    return Topology(
        {
            name: {
                other: cell
                for other, cell in zip(head, row, strict=False)
                if re.fullmatch(r"GPU\d+|NIC\d+|mlx\w+", other)
            }
            for name, row in rows.items()
        },
        {
            name: numbers_in(row[at])
            for name, row in rows.items()
            if at is not None and name.startswith("GPU") and len(row) > at
        },
    )


def links_between_cards(texts: Texts) -> Iterator[Check]:
    """How each pair of cards is connected."""
    links = topology(texts).links
    gpus = [name for name in links if name.startswith("GPU")]
    pairs = {(a, b): links[a].get(b, "") for a, b in combinations(gpus, 2)}
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


def nvlinks(texts: Texts) -> Iterator[Check]:
    """Links that should be there and are not, from `nvidia-smi nvlink -s`."""
    card, down, up = "", dict[str, int](), set[str]()
    for line in texts.get("nvlink", "").splitlines():
        if found := re.match(r"GPU (\d+):", line):
            card = found[1]
        elif "inactive" in line:
            down[card] = down.get(card, 0) + 1
        elif re.match(r"\s*Link \d+: [\d.]+", line):
            up.add(card)
    # A card whose links are all down has no bridge or switch: that is no fault.
    if partly := {c: n for c, n in down.items() if c in up}:
        said = names(f"GPU {card}: {count}" for card, count in partly.items())
        to_do = "reseat the bridge or look at `nvidia-smi nvlink -e` and the fabric manager's log"
        yield Check("NVLinks down", said, to_do)


def near_network(texts: Texts) -> Iterator[Check]:
    """Whether each card has a network card below the same PCIe switch."""
    found = topology(texts)
    best = {
        gpu: [kind for other, kind in row.items() if not other.startswith("GPU")]
        for gpu, row in found.links.items()
        if gpu.startswith("GPU")
    }
    if not any(best.values()):
        return
    far = [gpu for gpu, kinds in best.items() if not any(k.startswith(_NEAR[1:]) for k in kinds)]
    to_do = "their data passes the CPU: put GPU and network card below one switch, if there is one"
    count = len(best) - len(far)
    yield Check("network beside cards", f"{count} of {len(best)}", to_do * bool(far))


def affinity(texts: Texts) -> Iterator[Check]:
    """Whether this process may use the cores beside each card."""
    allowed = numbers_in(field(texts.get("status", ""), "Cpus_allowed_list"))
    cores = topology(texts).cores
    if not allowed or not cores:
        return
    nodes = len({frozenset(own) for own in cores.values()})
    far = [gpu for gpu, own in cores.items() if own and not own & allowed]
    yield Check(
        "NUMA",
        f"{len(allowed)} cores, cards on {nodes} node{'s' if nodes > 1 else ''}",
        f"no core beside {names(far)}: give the job cores of both nodes, or start each rank with "
        "`numactl --cpunodebind`"
        if far
        else "",
    )


def clocks(texts: Texts) -> Iterator[Check]:
    """Limits below the card's own, and clocks that are held down now."""
    rows = gpu_rows(texts)
    for row in rows:
        watts, usual = (_number(row, name) for name in ("power.limit", "power.default_limit"))
        if watts and usual and watts < usual:
            to_do = f"`nvidia-smi -i {row['index']} -pl {usual:.0f}`"
            yield Check(f"power of GPU {row['index']}", f"{watts:.0f} of {usual:.0f} W", to_do)
        set_to, most = (
            _number(row, f"clocks.{name}.graphics")
            for name in ("applications", "default_applications")
        )
        if set_to and most and set_to < most:
            to_do = f"`nvidia-smi -i {row['index']} -rac`, and -rgc if clocks are locked"
            yield Check(f"clock of GPU {row['index']}", f"{set_to:.0f} of {most:.0f} MHz", to_do)
        reasons = next((v for k, v in row.items() if k.endswith("_reasons.active")), "")
        bits = int(reasons, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", reasons) else 0
        if why := [said for bit, said in _SLOWED.items() if bits & bit]:
            to_do = "look at cooling and power supply before you measure anything"
            yield Check(f"GPU {row['index']} is slowed down", names(why), to_do)
    if rows:
        limits = dict.fromkeys(row.get("power.limit", "") for row in rows)
        yield Check("power limits", f"{names(limits)} W")


def _number(row: Mapping[str, str], name: str) -> float:
    """The value, 0 where the card does not say."""
    try:
        return float(row.get(name, ""))
    except ValueError:
        return 0.0
