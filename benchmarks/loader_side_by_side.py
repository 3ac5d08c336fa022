"""The loader's main figures in one go: runs that mostly sleep share a machine and a GPU.

    PYTHONPATH=src python benchmarks/loader_side_by_side.py --openfold CHECKOUT --out h200.json

At the same time: steps of 250 ms for both presets, two processes that sleep, `--steps` each; and
beside them, one after another, steps of 50 ms of matrix products for both presets, the same with
a torch DataLoader of 14 workers and OpenFold's transforms, and a sample's copies, CPU and GPU
time. What is there is saved after each part, and when the script is ended from outside.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from made_up_chains import write_chains

HERE = Path(__file__).resolve().parent
PRESETS = ("initial_training", "finetuning")


def run(out: Path, common: list[str], *words: str) -> subprocess.Popen[bytes]:
    script = str(HERE / "loader_gpu.py")
    return subprocess.Popen([sys.executable, script, "--out", str(out), *common, *words])


def merged(folder: Path) -> dict[str, Any]:
    """All that is there so far, by preset."""
    result: dict[str, Any] = {"runs": {}, "presets": {}}
    for path in sorted(folder.glob("*.json")):
        try:
            one = json.loads(path.read_text())
        except ValueError:  # it was ended while it wrote
            continue
        result["machine"] = {k: v for k, v in one["machine"].items() if k != "command"}
        result["runs"][path.stem] = one["machine"]["command"]
        result |= {k: v for k, v in one.items() if k not in ("machine", "presets")}
        for preset, figures in one["presets"].items():
            result["presets"].setdefault(preset, {}).update(figures)
    for figures in result["presets"].values():
        peer = figures.get("step_50_ms_openfold_dataloader")
        for key in ("step_50_ms", "step_250_ms"):
            if peer and key in figures:
                ours = figures[key]["cpu_ms_a_sample"]
                figures[key]["times_less_cpu_than_openfold"] = peer["cpu_ms_a_sample"] / ours
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--openfold", type=Path, help="a checkout of OpenFold, for the peer")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--peer-steps", type=int, default=200)
    parser.add_argument("--chains", type=int, default=96)
    parser.add_argument("--alone-after", type=float, default=0.0,
                        help="seconds until all but the sleeping runs begin")  # fmt: skip
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="tiny sizes, to prove the script")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder, data = Path(temporary), str(Path(temporary) / "d")
        count, scale = (12, 0.15) if args.small else (args.chains, 1.0)
        write_chains(Path(data), count, scale=scale)
        common = ["--data", data, "--device", args.device, *["--small"] * args.small]
        steps = ["--steps", str(args.steps), "--slow-steps", "0"]
        parts = {"50_ms": ["--stages", "feed", *steps]}
        if args.openfold is not None:
            peer = ["--stages", "peer", "--sleep", "--openfold", str(args.openfold)]
            peer += ["--peer-steps", str(args.peer_steps), *steps]
            parts["peer_initial_training"] = [*peer, "--preset", "initial_training"]
            parts["peer_finetuning"] = [*peer, "--preset", "finetuning"]
        parts["sample"] = ["--stages", "copy host featurize cold", *steps]
        slow = ["--stages", "feed", "--sleep", "--steps", "0", "--slow-steps", str(args.steps)]
        running = []
        try:
            for preset in PRESETS:
                words = ["--preset", preset, *slow]
                running.append(run(folder / f"250_ms_{preset}.json", common, *words))
            time.sleep(max(0.0, begun + args.alone_after - time.monotonic()))
            for name, words in parts.items():
                running.append(run(folder / f"{name}.json", common, *words))
                assert running[-1].wait() == 0
                args.out.write_text(json.dumps(merged(folder), indent=1))
            assert [process.wait() for process in running] == [0] * len(running)
        finally:
            for process in running:
                process.kill()
            args.out.write_text(json.dumps(merged(folder), indent=1))


if __name__ == "__main__":
    main()
