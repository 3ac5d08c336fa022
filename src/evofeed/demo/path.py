"""One run of the demo of chains: its stages, and the report of their results."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evofeed.base.errors import EvofeedError
from evofeed.protein.chain_record import ChainRecord

if TYPE_CHECKING:
    from evofeed.trainer.predict.prediction import Prediction

Say = Callable[[str], None]


Report = dict[str, Any]
"""Results of a demo: JSON-ready values. Times in seconds, sizes in bytes."""
Rows = list[tuple[str, str]]
"""Labels and texts of a report, in the order of the stages."""


def write_report(report: Report, path: Path) -> Report:
    """Write a report to a file.

    Raises:
        EvofeedError: the loss did not fall.
    """
    path.write_text(json.dumps(report, indent=1))
    first, last = report["loss_first"], report["loss_last"]
    if not last < first:
        raise EvofeedError(
            f"the loss did not fall: {first:.3f} to {last:.3f} in {report['steps']} steps; the "
            "report is written",
            path=str(path),
        )
    return report


def rows_of_training(report: Report) -> Rows:
    """Rows of a report about training."""
    first, last = f"{report['loss_first']:.4g}", f"{report['loss_last']:.4g}"
    return [
        ("snapshot", report["snapshot"][:16]),
        ("device", report["device"]),
        ("training", f"{report['steps']} steps of {report['step_seconds']:.2f} s (median)"),
        ("loss", f"{first} over the first tenth, {last} over the last"),
    ]


def rows(report: Report) -> Rows:
    """Rows of the report of the demo of chains."""
    speed = f"{report['chains_per_second']:.1f} chains/s, the start of workers included"
    speed = speed if report["chains_per_second"] else "done by an earlier demo here"
    return [
        ("raw files", f"{report['input']}, {report['raw_bytes'] / 1e6:.1f} MB"),
        ("chains", f"{report['chains']} good, {report['quarantined']} quarantined"),
        ("featurize", speed),
        ("shards", f"{report['dataset_bytes'] / 1e6:.1f} MB in {report['dataset']}"),
        *rows_of_training(report),
        ("waiting for data", f"{report['data_wait_share']:.1%} of the time"),
        *(("picture", picture) for picture in report["pictures"]),
        ("all in all", f"{report['seconds']:.0f} s"),
    ]


def run_demo(
    out: Path,
    *,
    raw: Path | None = None,
    chains: int = 24,
    steps: int = 120,
    say: Say | None = None,
) -> Report:
    """Files to shards to service to training, in one folder.

    Args:
        out: output folder; an earlier demo in it is continued.
        raw: raw files to start from; None simulates protein families.
        say: called with a line at the start of each stage; None shows no lines and no bars.

    Raises:
        EvofeedError: a stage failed, or the loss did not fall.
    """
    from evofeed.service import serving
    from evofeed.store import Dataset
    from evofeed.viz import draw_distogram, draw_msa_coverage

    began = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    if raw is None:
        raw = simulate(out / "raw", chains, say)
    job = featurize(raw, out / "dataset", say)
    with serving({"demo": str(out / "dataset")}) as url:
        address = f"{url}/v1/datasets/demo"
        tell(say, f"serve: {address}")
        dataset = Dataset.open(address)
        record = deepest_chain(dataset)
        coverage = draw_msa_coverage(record, out / "msa_coverage.png")
        tell(say, f"draw: the alignment of {record.chain_id}, {coverage}")
        tell(say, f"train: {steps} steps of the tiny AlphaFold2")
        training = train_small("chains", dataset, out / "training", steps, say)
        distogram = predict(record, out / "training").distogram
        distances = draw_distogram(record, distogram, out / "distogram.png")
        tell(say, f"draw: its distances, predicted and true, {distances}")
    report = {
        "input": str(raw),
        **job,
        "served_from": address,
        **training,
        "pictures": [str(coverage), str(distances)],
        "raw_bytes": sum(p.stat().st_size for p in raw.rglob("*") if p.is_file()),
        "seconds": time.perf_counter() - began,
    }
    return write_report(report, out / "report.json")


def tell(say: Say | None, text: str) -> None:
    """Announce a stage with `say`, if it is given."""
    if say is not None:
        say(text)


def simulate(folder: Path, number: int, say: Say | None, **settings: Any) -> Path:
    """Raw files of synthetic families, written once: chains, or complexes with `settings`."""
    from evofeed.synth import write_synthetic

    marker = folder / ".complete"
    request = f"{number} {settings}" if settings else str(number)
    if not marker.exists() or marker.read_text() != request:
        shutil.rmtree(folder, ignore_errors=True)  # chains of another count would stay
        units = "complexes" if settings else "chains"
        tell(say, f"synth: {number} {units} of simulated protein families")
        write_synthetic(folder, number, seed=0, **settings)
        marker.write_text(request)
    return folder


def featurize(raw: Path, dataset: Path, say: Say | None) -> dict[str, Any]:
    """Raw files to a published snapshot."""
    from evofeed.featurize.job import run_job
    from evofeed.featurize.job.show import job_bar

    tell(say, "featurize: raw files to shards")
    with job_bar(quiet=say is None) as progress:
        report = run_job(str(raw), str(dataset), progress=progress)
    if report.snapshot is None:
        raise EvofeedError(f"nothing was published: {report.message}", path=report.path)
    return {
        "dataset": str(dataset),
        "snapshot": report.snapshot,
        "chains": report.num_good,
        "quarantined": report.num_broken,
        "chains_per_second": report.chains_per_second,
        "dataset_bytes": sum(p.stat().st_size for p in dataset.rglob("*.arrow")),
    }


def train_small(
    name: str, dataset: Any, out: Path, steps: int, say: Say | None, **loader: Any
) -> dict[str, Any]:
    """Train from scratch by `NAME.yaml` of this folder: losses, times and device.

    `loader` overrides settings of the loader.
    """
    from evofeed.trainer.report.run_report import make_report
    from evofeed.trainer.run.settings import load_config
    from evofeed.trainer.run.train import train

    shutil.rmtree(out, ignore_errors=True)  # a demo starts over; `evofeed train` resumes
    config = load_config(str(Path(__file__).with_name(f"{name}.yaml")))
    config = config.replace(steps=steps, loader={**config.loader, **loader})
    train(config, dataset, out=out, show=say is not None)
    report = make_report(out)
    return {
        "steps": report["figures"]["iterations"],
        "loss_first": report["loss"]["first_tenth_mean"],
        "loss_last": report["loss"]["last_tenth_mean"],
        "step_seconds": report["figures"]["step_seconds"]["p50"],
        "data_wait_share": report["data_wait"]["share"],
        "device": report["run"]["device"],
    }


def deepest_chain(dataset: Any) -> ChainRecord:
    """The chain with the deepest alignment among those with a structure."""
    index = dataset.index.to_pydict()
    columns = (index[name] for name in ("num_alignments", "chain_id", "has_structure"))
    candidates = zip(*columns, strict=True)
    _, chain_id = max((rows, name) for rows, name, has_structure in candidates if has_structure)
    record: ChainRecord = dataset[chain_id]
    return record


def predict(record: Any, run: Path, *, trained: bool = True) -> Prediction:
    """A full chain or complex predicted with the averaged weights of a run, or its initial ones."""
    from evofeed.trainer import AlphaFold
    from evofeed.trainer.predict.prediction import predict_structure, prediction_batch
    from evofeed.trainer.predict.weights import load_model, trained_sizes
    from evofeed.trainer.run.settings import load_config, parts_of

    untrained = AlphaFold(parts_of(load_config(str(run / "config.yaml"))).model)
    model = load_model(run) if trained else untrained
    sizes = trained_sizes(run) | {"no_recycling_iters": 0}
    return predict_structure(model, prediction_batch(record, model, **sizes))
