"""The full model learns one real chain by heart: `evofeed train overfit`, with its curve.

    PYTHONPATH=src python benchmarks/overfit_gpu.py --dataset DATA --chain 102m_A --out OUT
    ... --preset tiny --steps 20 --crop 32 --every 10       # proof on a laptop

DATA is a featurized dataset (`evofeed featurize raw/ DATA --executor local`). Trains on
one fixed batch and measures lDDT-Ca, TM-score and dRMSD on it every `--every` steps; at
the end the chain is predicted as `evofeed predict` does, from other rows of its alignment.
Writes `OUT/overfit.<preset>.json` with the curve, a picture of it, the run report's picture,
and the predicted structure.
SIGTERM ends the training early and keeps what there is.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evofeed.chain_record import ChainRecord
from evofeed.loader import record_batch
from evofeed.store import Dataset
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.log.runlog import read_steps
from evofeed.trainer.losses.metrics import structure_metrics
from evofeed.trainer.predict.prediction import load_model, predict_structure
from evofeed.trainer.presets import PRESETS
from evofeed.trainer.report.plot import plot_report
from evofeed.trainer.run.train import train

TERMS = ("loss", "fape", "distogram", "masked_msa", "supervised_chi", "plddt_loss")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--chain", default="102m_A")
    parser.add_argument("--out", type=Path, required=True, help="folder")
    parser.add_argument("--preset", default="overfit")
    parser.add_argument("--steps", type=int, help="default: the preset's")
    parser.add_argument("--crop", type=int, help="residues; default: the preset's")
    parser.add_argument("--every", type=int, help="steps between measurements")
    parser.add_argument("--set", default="{}", help="JSON of other settings of the run")
    return parser.parse_args()


def settings(options: argparse.Namespace) -> TrainConfig:
    base = PRESETS[options.preset]().train
    loader: dict[str, Any] = {"chains": (options.chain,)}
    if options.crop:
        loader["crop_size"] = options.crop
    more = json.loads(options.set)
    return base.replace(
        fixed_batches=1, profile_steps=0, steps=options.steps or base.steps, loader=loader,
        validate_every=options.every or base.validate_every,
        optim=base.optim if "optim" not in more else type(base.optim)(**more.pop("optim")), **more,
    )  # fmt: skip


def main() -> None:
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    record = Dataset.open(options.dataset)[options.chain]
    config = settings(options)
    folder = Path(tempfile.mkdtemp(prefix="evofeed-overfit-")) / "run"
    result = train(config, options.dataset, out=folder)
    lines = read_steps(folder)
    curve = [{"step": x["step"], **{t: round(x["terms"][t], 4) for t in TERMS}} for x in lines]
    content: dict[str, Any] = {
        "benchmark": "overfit_gpu",
        "command": " ".join(["python benchmarks/overfit_gpu.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "chain": options.chain,
        "residues": record.num_res,
        "config": config.to_dict(),
        "seconds": round(result.seconds, 1),
        "skipped": result.skipped,
        "metrics": [{"step": x["step"] + 1, **x["metrics"]} for x in lines if "metrics" in x],
        "curve": curve,
    }
    name = f"overfit.{options.preset}"
    (options.out / f"{name}.json").write_text(json.dumps(content, indent=1))
    for measured in content["metrics"]:
        print(json.dumps(measured), flush=True)
    plot(content, folder, options.out / f"{name}.png")
    content["predicted_from_other_rows"] = predicted(record, folder, options.out / "predicted.pdb")
    print(json.dumps(content["predicted_from_other_rows"]), flush=True)
    (options.out / f"{name}.json").write_text(json.dumps(content, indent=1))


def predicted(record: ChainRecord, folder: Path, path: Path) -> dict[str, float]:
    """Metrics of what `evofeed predict` makes of the chain without recycling."""
    place = "cuda" if torch.cuda.is_available() else "cpu"
    batch = {k: v.to(place) for k, v in record_batch(record, no_recycling_iters=0).items()}
    found = predict_structure(load_model(folder).to(place), batch, name=record.chain_id)
    path.write_text(found.text("pdb"))
    truth = record.all_atom_positions, record.all_atom_mask
    assert truth[0] is not None and truth[1] is not None
    arrays = (found.structure.positions, *truth)
    metrics = structure_metrics(
        *(torch.from_numpy(np.asarray(a, np.float64))[None] for a in arrays)
    )
    return {name: float(value) for name, value in metrics.items()}


def plot(content: dict[str, Any], folder: Path, path: Path) -> None:
    try:
        import matplotlib
    except ImportError:
        print("no matplotlib: the picture is left out", flush=True)
        return
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
    scores.axhline(0.9, color="grey", linewidth=0.5)
    scores.set(title="structure of the batch learnt", xlabel="step", ylim=(0, 1))
    scores.legend()
    figure.suptitle(
        f"{content['config']['preset']}: {content['chain']} ({content['residues']} residues) "
        f"by heart on {content['device']}"
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)
    plot_report(folder, path.with_suffix(".report.png"))


if __name__ == "__main__":
    main()
