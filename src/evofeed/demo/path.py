"""One run of the whole path, stage by stage, and what each stage measured."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evofeed.base.errors import EvofeedError
from evofeed.protein.chain_record import ChainRecord

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a demo did, whatever it showed. Times in seconds."""

    dataset: str
    snapshot: str
    device: str
    steps: int
    loss_first: float
    loss_last: float
    step_seconds: float
    seconds: float

    def trained(self) -> list[tuple[str, str]]:
        """Label and text of what was trained."""
        first, last = f"{self.loss_first:.4g}", f"{self.loss_last:.4g}"
        return [
            ("snapshot", self.snapshot[:16]),
            ("device", self.device),
            ("training", f"{self.steps} steps of {self.step_seconds:.2f} s (median)"),
            ("loss", f"{first} over the first tenth, {last} over the last"),
        ]

    def to_json(self) -> str:
        """The report as JSON, for machines."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    def write(self, path: Path) -> None:
        """Keep the report.

        Raises:
            EvofeedError: the loss did not fall.
        """
        path.write_text(self.to_json())
        if not self.loss_last < self.loss_first:
            raise EvofeedError(
                f"the loss did not fall: {self.loss_first:.3f} to {self.loss_last:.3f} in "
                f"{self.steps} steps; the report is kept",
                path=str(path),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport(Report):
    """What the demo of chains did. Sizes in bytes."""

    input: str
    chains: int
    quarantined: int
    chains_per_second: float
    raw_bytes: int
    dataset_bytes: int
    served_from: str
    data_wait_share: float
    pictures: tuple[str, ...]

    def rows(self) -> list[tuple[str, str]]:
        """Label and text, in the order of the path."""
        speed = f"{self.chains_per_second:.1f} chains/s, the start of Ray included"
        speed = speed if self.chains_per_second else "done by an earlier demo here"
        return [
            ("raw files", f"{self.input}, {self.raw_bytes / 1e6:.1f} MB"),
            ("chains", f"{self.chains} good, {self.quarantined} quarantined"),
            ("featurize", speed),
            ("shards", f"{self.dataset_bytes / 1e6:.1f} MB in {self.dataset}"),
            *self.trained(),
            ("waiting for data", f"{self.data_wait_share:.1%} of the time"),
            *(("picture", picture) for picture in self.pictures),
            ("all in all", f"{self.seconds:.0f} s"),
        ]


def run_demo(
    out: Path,
    *,
    raw: Path | None = None,
    chains: int = 24,
    steps: int = 120,
    say: Say | None = None,
) -> DemoReport:
    """Files to shards to service to training, below one folder.

    Args:
        out: folder for everything the demo makes; an earlier demo there is continued.
        raw: raw files to start from; None simulates protein families.
        chains: how many to simulate.
        steps: training steps.
        say: gets a line at the start of each stage; None shows nothing, no bars either.

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
        training = train_preset(
            dataset, out / "training", steps, say is not None, "tiny",
            loss={"distogram": 2.0},  # what the picture shows; AF2's weights need far more steps
            # Deleting blocks may leave fewer rows than clusters. Then the extra MSA is empty, and
            # AF2's outer product mean divides its bias by 1e-3: a short run never recovers from it.
            loader={"num_blocks": 0},
        )  # fmt: skip
        logits = distogram_logits(record, out / "training")
        distances = draw_distogram(record, logits, out / "distogram.png")
        tell(say, f"draw: its distances, predicted and true, {distances}")
    report = DemoReport(
        input=str(raw),
        **job,
        served_from=address,
        **training,
        pictures=(str(coverage), str(distances)),
        raw_bytes=sum(p.stat().st_size for p in raw.rglob("*") if p.is_file()),
        seconds=time.perf_counter() - began,
    )
    report.write(out / "report.json")
    return report


def tell(say: Say | None, text: str) -> None:
    """Announce a stage, if anybody listens."""
    if say is not None:
        say(text)


def simulate(folder: Path, number: int, say: Say | None, **kind: Any) -> Path:
    """Synthetic families as raw files, once: chains, or complexes of some `stoichiometries`."""
    from evofeed.synth import write_synthetic

    marker = folder / ".complete"
    wanted = f"{number} {kind}" if kind else str(number)
    if not marker.exists() or marker.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)  # ours: chains of another count would stay
        what = "complexes" if kind else "chains"
        tell(say, f"synth: {number} {what} of simulated protein families")
        write_synthetic(folder, number, seed=0, **kind)
        marker.write_text(wanted)
    return folder


def featurize(raw: Path, dataset: Path, say: Say | None) -> dict[str, Any]:
    """Raw files to a published snapshot, on a local Ray."""
    from evofeed.featurize.job import run_job
    from evofeed.featurize.job.show import job_bar

    tell(say, "featurize: raw files to shards, on a local Ray")
    with job_bar(quiet=say is None) as progress:
        report = run_job(str(raw), str(dataset), executor="ray", progress=progress)
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


def train_preset(
    dataset: Any, out: Path, steps: int, show: bool, preset: str, **changes: Any
) -> dict[str, Any]:
    """Some steps of a small preset with changes, from scratch: losses, times, device."""
    from evofeed.trainer.presets import PRESETS
    from evofeed.trainer.report.run_report import make_report
    from evofeed.trainer.run.train import train

    shutil.rmtree(out, ignore_errors=True)  # a demo starts over; `evofeed train` resumes
    start = PRESETS[preset]().train
    config = start.replace(
        steps=steps,
        checkpoint_every=0,
        profile_steps=0,  # a third of the time on a CPU, and the demo does not show it
        optim=dataclasses.replace(start.optim, learning_rate=3e-3),
        **changes,
    )
    train(config, dataset, out=out, show=show)
    figures = make_report(out)
    return {
        "steps": figures["figures"]["iterations"],
        "loss_first": figures["loss"]["first_tenth_mean"],
        "loss_last": figures["loss"]["last_tenth_mean"],
        "step_seconds": figures["figures"]["step_seconds"]["p50"],
        "data_wait_share": figures["data_wait"]["share"],
        "device": figures["run"]["device"],
    }


def deepest_chain(dataset: Any) -> ChainRecord:
    """The chain with the deepest alignment among those with a structure."""
    index = dataset.index.to_pydict()
    columns = (index[name] for name in ("num_alignments", "chain_id", "has_structure"))
    candidates = zip(*columns, strict=True)
    _, chain_id = max((rows, name) for rows, name, known in candidates if known)
    record: ChainRecord = dataset[chain_id]
    return record


def distogram_logits(record: Any, run: Path) -> np.ndarray:
    """`f32[L, L, 64]` of one whole chain by the averaged weights of a run."""
    import torch

    from evofeed.loader import record_batch
    from evofeed.trainer.predict.weights import load_model, trained_sizes

    model = load_model(run).eval()
    with torch.no_grad():
        outputs = model(record_batch(record, **trained_sizes(run) | {"no_recycling_iters": 0}))
    logits: np.ndarray = outputs["distogram_logits"][0].float().numpy()
    return logits
