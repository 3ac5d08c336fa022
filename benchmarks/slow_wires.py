"""Every way to average gradients: what it costs on a slow wire, and what it does to learning.

    PYTHONPATH=src python benchmarks/slow_wires.py curves --out OUT --steps 150
    PYTHONPATH=src python benchmarks/slow_wires.py wires --out OUT --steps 3    # as root

`curves` trains the tiny preset on two ranks of one host in every mode, from the same weights, over
the same samples with the same dropout: OUT/slow_wires_curves.json and .png.

`wires` makes two hosts of this machine: two network namespaces, joined by a pair of virtual
interfaces that `tc` holds to so many megabits a second each way. Two ranks on each average a
gradient of the full model in every mode; the interface says what was sent: OUT/slow_wires.json.
What a whole step takes on GPUs is `evofeed bench comm`'s to say.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = {"warmup_steps": 20, "density": 0.01, "rank": 2}
MODES: dict[str, dict[str, Any]] = {
    mode: {"gradients": {"mode": mode, **SETTINGS}}
    for mode in ("none", "hierarchical", "bf16", "int8", "powersgd", "topk")
}
MODES["topk, momentum 0.9"] = {
    "gradients": {"mode": "topk", "momentum": 0.9, **SETTINGS}, "optim": {"beta1": 0.0},
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["curves", "wires"])
    parser.add_argument("--out", type=Path, required=True, help="folder of JSON and picture")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--mbit", type=float, default=1000.0, help="of the link, each way")
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {
        "command": f"python benchmarks/slow_wires.py {options.what} --steps {options.steps}"
        + f" --mbit {options.mbit:g}" * (options.what == "wires"),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} CPU cores that others used too",
        "versions": {"python": platform.python_version(), "torch": _torch()},
        "modes": {},
    }
    (curves if options.what == "curves" else wires)(options, found)


def curves(options: argparse.Namespace, found: dict[str, Any]) -> None:
    """Under torchrun one rank's share; else starts two ranks and draws what they found."""
    path = options.out / "slow_wires_curves.json"
    if "RANK" in os.environ:
        train_all(options, found, path)
        return
    with tempfile.TemporaryDirectory() as scratch:
        own = {"SLOW_WIRES_SCRATCH": scratch, **environment()}
        dataset(Path(scratch), 16)
        subprocess.run([*torchrun(2), __file__, *sys.argv[1:]], check=True, env=own)
    draw(json.loads(path.read_text()), path.with_suffix(".png"))


def train_all(options: argparse.Namespace, found: dict[str, Any], path: Path) -> None:
    from evofeed.trainer.run.distributed import join_world
    from evofeed.trainer.run.settings import load_config
    from evofeed.trainer.run.train import train

    found |= {"preset": "tiny, crop 32, no recycling, 2 ranks of one host", "chains": 16}
    scratch = Path(os.environ["SLOW_WIRES_SCRATCH"])
    with join_world("cpu") as world:
        for number, name in enumerate(options.modes):
            if world.is_first:
                run_file(scratch, options.steps, MODES[name])
            world.barrier()
            config = load_config(str(scratch / "run.yaml"))
            result = train(config, str(scratch / "data"), out=scratch / str(number), device="cpu")
            found["modes"][name] = {"settings": MODES[name], "losses": result.losses}
            if world.is_first:
                path.write_text(json.dumps(found))
                print(name, result.seconds, result.losses[:2], result.losses[-2:], flush=True)
            world.barrier()


def draw(found: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (loss, apart) = pyplot.subplots(1, 2, figsize=(11, 4))
    exact = smooth(found["modes"]["none"]["losses"])
    for name, one in found["modes"].items():
        curve = smooth(one["losses"])
        loss.plot(curve, label=name)
        apart.plot([a / b - 1 for a, b in zip(curve, exact, strict=True)], label=name)
    loss.set(xlabel="step", ylabel="loss, mean of 10 steps")
    apart.set(xlabel="step", ylabel="above the exact run's", ylim=(-0.1, 0.3))
    loss.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def smooth(values: list[float], width: int = 10) -> list[float]:
    pieces = (values[max(0, at + 1 - width) : at + 1] for at in range(len(values)))
    return [sum(piece) / len(piece) for piece in pieces]


def wires(options: argparse.Namespace, found: dict[str, Any]) -> None:
    """Outside of the hosts: makes them and starts two ranks on each; inside: one rank's share."""
    if "RANK" in os.environ:
        exchange_all(options, found)
        return
    with two_hosts(options.mbit) as hosts:
        nodes = "--nnodes 2 --master-addr 10.77.0.1 --master-port 29577 --node-rank".split()
        started = [
            subprocess.Popen(
                ["ip", "netns", "exec", host, *torchrun(2, [*nodes, str(number)]), *sys.argv],
                env={**environment(), "GLOO_SOCKET_IFNAME": "wire"},
            )
            for number, host in enumerate(hosts)
        ]
        codes = [process.wait(timeout=1800) for process in started]
        if any(codes):
            raise SystemExit("a host failed")


def exchange_all(options: argparse.Namespace, found: dict[str, Any]) -> None:
    """A gradient of the full model's shapes, averaged in every mode."""
    import torch

    from evofeed.trainer.config import GRADIENTS, GradientConfig
    from evofeed.trainer.gradients.modes import exchange_of
    from evofeed.trainer.model.alphafold import AlphaFold
    from evofeed.trainer.model.config import ModelConfig
    from evofeed.trainer.run.distributed import join_world

    with torch.device("meta"):
        shapes = [parameter.shape for parameter in AlphaFold(ModelConfig()).parameters()]
    ends = list(itertools.accumulate(-(-shape.numel() // 128) * 128 for shape in shapes))
    spans = [(end, s.numel(), s) for end, s in zip([0, *ends[:-1]], shapes, strict=True)]
    found |= {
        "gradient": f"float32, {sum(shape.numel() for shape in shapes):,} parameters",
        "hosts": "2 network namespaces of one machine with 2 ranks each, gloo over a pair of "
        f"virtual interfaces; tc's token bucket lets {options.mbit:g} Mbit/s through each way",
        "mbit": options.mbit,
        "settings": "density 0.001, rank 4, after the warm-up",
    }
    with join_world("cpu") as world:
        grad = torch.randn(ends[-1], generator=torch.Generator().manual_seed(world.rank))
        for mode in GRADIENTS:
            exchange = exchange_of(
                GradientConfig(mode=mode, warmup_steps=0), spans, ends[-1], rank=world.rank,
                ranks=world.size, device=world.device,
            )  # fmt: skip
            seconds, sent = [], []
            for _ in range(options.steps + 1):  # the first opens connections
                world.barrier()
                before, began = interface_bytes(), time.perf_counter()
                exchange.mean(grad.clone(), 0)
                seconds.append(max(world.collect(time.perf_counter() - began)))
                sent.append(interface_bytes() - before)
            per_rank = exchange.between.sent / (options.steps + 1)
            found["modes"][mode] = {
                "seconds": statistics.median(seconds[1:]), "each": seconds[1:],
                "interface_bytes": statistics.median(sent[1:]), "counted_bytes_a_rank": per_rank,
            }  # fmt: skip
            if world.is_first:
                (options.out / "slow_wires.json").write_text(json.dumps(found, indent=1))
                print(mode, found["modes"][mode], flush=True)
            del exchange


def interface_bytes() -> int:
    """What this host has sent to the other."""
    return int(Path("/sys/class/net/wire/statistics/tx_bytes").read_text())


@contextlib.contextmanager
def two_hosts(mbit: float) -> Iterator[list[str]]:
    """Names of two network namespaces with one slow wire between them."""
    hosts = ["evofeed0", "evofeed1"]
    try:
        for host in hosts:
            subprocess.run(["ip", "netns", "add", host], check=True)
        pair = ["ip", "link", "add", "wire", "netns", hosts[0], "type", "veth", "peer", "name"]
        subprocess.run([*pair, "wire", "netns", hosts[1]], check=True)
        rate = f"rate {mbit:g}mbit burst {max(int(mbit), 64)}kb latency 400ms"
        for number, host in enumerate(hosts, 1):
            for line in (
                "ip link set lo up", f"ip addr add 10.77.0.{number}/24 dev wire",
                "ip link set wire up", f"tc qdisc add dev wire root tbf {rate}",
            ):  # fmt: skip
                subprocess.run(["ip", "netns", "exec", host, *line.split()], check=True)
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host], check=False)


def torchrun(ranks: int, nodes: list[str] | None = None) -> list[str]:
    command = [sys.executable, "-m", "torch.distributed.run", *(nodes or ["--standalone"])]
    return [*command, "--nproc-per-node", str(ranks)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def run_file(folder: Path, steps: int, changes: dict[str, Any]) -> Path:
    """A run of the tiny preset as YAML."""
    optim = {"warmup_steps": 10, "learning_rate": 2e-3, "ema_decay": 0.9} | changes.get("optim", {})
    path = folder / "run.yaml"
    values = {
        "preset": "tiny", "steps": steps, "profile_steps": 0, "checkpoint_every": 0,
        "validate_every": 0, "loader": {"crop_size": 32, "max_recycling_iters": 0},
        **changes, "optim": optim,
    }  # fmt: skip
    path.write_text(json.dumps(values))  # JSON is YAML
    return path


def dataset(folder: Path, chains: int) -> str:
    sys.path.insert(0, str(ROOT))
    from tests.trainer.synthetic_records import write_dataset

    return write_dataset(folder / "data", chains, tiny=True)


def _torch() -> str:
    import torch

    return torch.__version__


if __name__ == "__main__":
    main()
