"""The full model learns one real chain by heart through the real loader: lDDT-Ca must pass 0.9.

    PYTHONPATH=src python benchmarks/overfit_gpu.py --dataset DATA --chain 102m_A --out OUT
    ... --preset tiny --steps 20 --crop 32 --every 10       # proof on a laptop

DATA is a featurised dataset (`evofeed featurize raw/ DATA --executor local`). The
chain is trained on and measured: lDDT-Ca, TM-score, dRMSD of the averaged
weights every `--every` steps. Writes `OUT/overfit.<preset>.json` with the curve,
a picture beside it, and the predicted structure as PDB.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from evofeed.store import Dataset, DatasetWriter
from evofeed.trainer.predict.prediction import load_model, predict_structure, record_batch
from evofeed.trainer.run.config import TrainConfig, preset
from evofeed.trainer.run.optim import OptimConfig
from evofeed.trainer.run.runlog import read_steps
from evofeed.trainer.run.train import train

TERMS = ("loss", "fape", "distogram", "masked_msa", "supervised_chi", "plddt_loss")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--chain", default="102m_A")
    parser.add_argument("--out", type=Path, required=True, help="folder")
    parser.add_argument("--preset", default="initial_training")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--crop", type=int, default=256, help="longer than the chain: all of it")
    parser.add_argument("--every", type=int, default=25, help="steps between measurements")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--eps", type=float, default=1e-8, help="of Adam; AF2's damps one chain")
    parser.add_argument("--clamp-prob", type=float, default=0.0, help="of the clamped FAPE")
    parser.add_argument("--graphs", action="store_true", help="replay steps as CUDA graphs")
    parser.add_argument("--decay-after", type=int, default=10**9, help="steps before the decay")
    parser.add_argument("--precision", default="")
    parser.add_argument("--kernels", default="")
    return parser.parse_args()


def settings(options: argparse.Namespace) -> TrainConfig:
    changes = {"precision": options.precision, "kernels": options.kernels}
    return preset(options.preset).replace(
        steps=options.steps,
        checkpoint_every=0,
        validate_every=options.every,
        validate_batches=1,
        profile_steps=0,
        loader={
            "crop_size": options.crop, "weighted": False, "allow_unknown": True,
            "max_recycling_iters": 1, "epoch_len": 64, "clamp_prob": options.clamp_prob,
        },
        cuda_graphs=options.graphs,
        optim=OptimConfig(
            learning_rate=options.rate, warmup_steps=30, ema_decay=0.98, eps=options.eps,
            decay_after=options.decay_after, decay_every=40, decay_factor=0.75,
        ),
        **{name: value for name, value in changes.items() if value},
    )  # fmt: skip


def main() -> None:
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    record = Dataset.open(options.dataset)[options.chain]
    uri = tempfile.mkdtemp(prefix="evofeed-overfit-data-")
    writer = DatasetWriter(uri)
    writer.add(record)
    writer.commit()
    dataset = Dataset.open(uri)
    config = settings(options)
    folder = Path(tempfile.mkdtemp(prefix="evofeed-overfit-"))
    began = time.perf_counter()
    result = train(config, dataset, validation=dataset, out=folder)
    lines = read_steps(folder)
    curve = [{"step": x["step"], **{t: round(x["terms"][t], 4) for t in TERMS}} for x in lines]
    content: dict[str, Any] = {
        "benchmark": "overfit_gpu",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "chain": options.chain,
        "residues": record.num_res,
        "config": config.to_dict(),
        "seconds": time.perf_counter() - began,
        "skipped": result.skipped,
        "metrics": [{"step": x["step"] + 1, **x["metrics"]} for x in lines if "metrics" in x],
        "curve": curve,
    }
    name = f"overfit.{options.preset}"
    (options.out / f"{name}.json").write_text(json.dumps(content, indent=1))
    plot(content, options.out / f"{name}.png")
    for measured in content["metrics"]:
        print(json.dumps(measured), flush=True)
    place = "cuda" if torch.cuda.is_available() else "cpu"
    batch = {k: v.to(place) for k, v in record_batch(record, no_recycling_iters=1).items()}
    found = predict_structure(load_model(folder).to(place), batch, name=options.chain)
    (options.out / f"{name}.pdb").write_text(found.text("pdb"))


def plot(content: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (losses, scores) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    curve, measured = content["curve"], content["metrics"]
    for name in TERMS[1:]:
        values = [p[name] / max(curve[0][name], 1e-9) for p in curve]
        losses.plot([p["step"] for p in curve], values, label=name, linewidth=1)
    losses.set(title="losses relative to the first step", xlabel="step", ylim=(0, 1.3))
    losses.legend(fontsize=8)
    for name in ("lddt_ca", "tm_score"):
        scores.plot([m["step"] for m in measured], [m[name] for m in measured], "o-", label=name)
    scores.set(title="structure with the averaged weights", xlabel="step", ylim=(0, 1))
    scores.legend()
    figure.suptitle(
        f"{content['config']['preset']} learns {content['chain']} ({content['residues']} residues) "
        f"by heart on {content['device']}"
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
