"""Features of complexes on a GPU at the multimer preset: right first, then what a step waits for.

    PYTHONPATH=src python benchmarks/complexes_loader.py DATA --out FILE --seconds 100

DATA holds datasets with complexes; those named by `--sets` are read. Parts, each written when done:

`equal`: every complex by the kernels and in plain torch on the same card, 1 and 4 recycles:
integers and masks bit for bit, floats to rounding; two runs of the kernels, all bits.
`syncs`: whether making a batch ever waits for the GPU.
`waits`: steps of `--step` seconds of matrix products that fill the card, each ended by a wait as
a trainer's that reads its loss: the time in `next(loader)`, and until the features are made.
`work`: kernels, copies and time on the device and of the CPU, by the kernels and in plain torch.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from benchmarks.loader_checks import Batch, hidden_syncs, want_mask
from benchmarks.loader_sample import featurize_times, queued_work
from benchmarks.loader_waits import Consumer, feed

from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Assemblies, Dataset

Sets = dict[str, Assemblies]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=["large", "golden"])
    parser.add_argument("--seconds", type=float, default=100, help="for everything")
    parser.add_argument("--step", type=float, default=0.25)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="small sizes, for a proof on a CPU")
    parser.add_argument("--parts", nargs="+", default=["equal", "syncs", "waits", "work"])
    return parser.parse_args()


def preset(options: argparse.Namespace) -> LoaderConfig:
    sizes = {"crop_size": 64, "max_msa_clusters": 32, "max_extra_msa": 64}
    return LoaderConfig.multimer(weighted=False, **(sizes if options.small else {}))


def equal(options: argparse.Namespace, sets: Sets, _: float) -> dict[str, Any]:
    """Kernels beside plain torch, and beside themselves."""
    found: dict[str, Any] = {}
    for name, dataset in sets.items():
        worst: dict[str, float] = {}
        tensors = batches = 0
        for recycles in (1, 4):
            config = preset(options).replace(
                uniform_recycling=False, max_recycling_iters=recycles - 1
            )
            how: dict[str, Any] = {"device": options.device, "reader": "thread", "seed": 3}
            with (
                FeatureLoader(dataset, config, **how, fused=False) as plain,
                FeatureLoader(dataset, config, **how) as one,
                FeatureLoader(dataset, config, **how) as two,
            ):
                for want, got, again in zip(plain, one, two, strict=True):
                    tensors += compare(flat(want), flat(got), worst)
                    for key, value in flat(again).items():
                        same = torch.equal(*(v.view(torch.uint8) for v in (value, flat(got)[key])))
                        assert same, f"{key} differs between two runs"
                    batches += 1
        found[name] = {"batches": batches, "tensors": tensors, "largest_float_difference": worst}
    return found


def flat(batch: dict[str, Any]) -> Batch:
    truth = {f"gt.{name}": value for name, value in batch.get("gt_features", {}).items()}
    return {k: v.contiguous() for k, v in {**batch, **truth}.items() if k != "gt_features"}


def compare(want: Batch, got: Batch, worst: dict[str, float]) -> int:
    """Raises where a tensor differs."""
    assert set(want) == set(got)
    for name, value in want.items():
        assert got[name].shape == value.shape, name
        if not value.is_floating_point() or name.endswith(("mask", "exists")):
            assert torch.equal(got[name], value), f"{name} differs"
            continue
        prefix = "gt." if name.startswith("gt.") else ""
        bare = name.removeprefix(prefix)
        masks = {k.removeprefix(prefix): v for k, v in want.items() if k.startswith(prefix)}
        if "frames" in name or "rigid_tensor" in name:
            exists = "rigidgroups_gt_exists" if "frames" in name else "backbone_rigid_mask"
            known = (masks[exists] == 1)[..., None, None].expand(value.shape)
        elif "torsion_angles_sin_cos" in name:
            known = (masks["torsion_angles_mask"] == 1)[..., None].expand(value.shape)
        else:
            known = want_mask(masks, bare, value)
        error = (got[name] - value).abs()[known].max().item() if known.any() else 0.0
        worst[name] = max(worst.get(name, 0.0), error)
        loose = any(part in name for part in ("sin_cos", "positions", "frames", "tensor"))
        limit = max(1e-4 if loose else 1e-5, 1e-5 * value.abs().max().item())
        assert error <= limit, f"{name} differs by {error}"
    return len(want)


def syncs(options: argparse.Namespace, sets: Sets, _: float) -> dict[str, Any]:
    """Where making a batch waits for the GPU."""
    if options.device == "cpu":
        return {}
    return {name: hidden_syncs(one, preset(options), 6) for name, one in sets.items()}  # type: ignore[arg-type]


def waits(options: argparse.Namespace, sets: Sets, until: float) -> dict[str, Any]:
    """A loop of steps that fill the card."""
    consumer = Consumer(options.device, options.step)
    share = (until - time.monotonic()) / len(sets)
    steps = max(4, min(int(share / (1.15 * options.step)) - 12, 200))
    return {
        name: feed(dataset, preset(options), consumer, steps)  # type: ignore[arg-type]
        for name, dataset in sets.items()
    }


def work(options: argparse.Namespace, sets: Sets, _: float) -> dict[str, Any]:
    """What a sample asks of the card and of the CPU."""
    found: dict[str, Any] = {}
    for name, dataset in sets.items():
        for fused in (True, False):
            config = preset(options).replace(epoch_len=24)
            times = featurize_times(dataset, config, options.device, 8, fused=fused)  # type: ignore[arg-type]
            queued = {} if options.device == "cpu" else queued_work(dataset, config, fused=fused)  # type: ignore[arg-type]
            found[f"{name}, {'kernels' if fused else 'plain torch'}"] = {**times, **queued}
    return found


def main() -> None:
    options = arguments()
    began = time.monotonic()
    sets = {
        name: Dataset.open(str(options.data / name)).assemblies
        for name in options.sets
        if (options.data / name).exists()
    }
    on_gpu = options.device == "cuda"
    result: dict[str, Any] = {
        "benchmark": "complexes_loader",
        "command": "python benchmarks/complexes_loader.py DATA " + " ".join(sys.argv[4:]),
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "complexes": {name: len(one) for name, one in sets.items()},
    }
    end = began + options.seconds
    parts: dict[str, Callable[..., dict[str, Any]]] = {
        "equal": equal, "syncs": syncs, "waits": waits, "work": work,
    }  # fmt: skip
    for name in options.parts:
        until = end - (15 if name == "waits" and "work" in options.parts else 0)
        try:
            result[name] = parts[name](options, sets, until)
        except Exception:  # the others shall be measured
            result[name] = {"error": traceback.format_exc()[-2500:]}
        result[name]["ended_at"] = round(time.monotonic() - began, 1)
        print(json.dumps({name: result[name]}), flush=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
