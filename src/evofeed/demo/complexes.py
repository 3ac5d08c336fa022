"""The demo of complexes: files, shards, service, training, predictions compared to the truth."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from evofeed.demo.path import (
    Report,
    Rows,
    Say,
    featurize,
    predict,
    rows_of_training,
    simulate,
    tell,
    train_small,
    write_report,
)
from evofeed.protein.assembly_record import AssemblyRecord

_STOICHIOMETRIES: Final = ("A2", "AB")
_SIZES: Final = {"mean_length": 30, "mean_depth": 40, "mean_members": 2}


def rows(report: Report) -> Rows:
    """Rows of the report of the demo of complexes; scores are before and after training."""
    good = f"{report['complexes']} good, {report['left_out']} left out, in {report['dataset']}"
    return [
        ("complexes", good),
        *rows_of_training(report),
        ("learnt by heart", report["shown"]),
        ("lDDT", "{1:.3f}, {0:.3f} untrained".format(*report["lddt_ca"])),
        # Untrained, all residues are at one point, so all contacts are predicted: DockQ is not 0.
        ("DockQ", "{1:.3f}, {0:.3f} untrained (all at one point)".format(*report["dockq"])),
        ("ipTM", "{1:.3f}, {0:.3f} untrained".format(*report["iptm"])),
        ("picture", report["picture"]),
        ("all in all", f"{report['seconds']:.0f} s"),
    ]


def run_complexes(
    out: Path, *, complexes: int = 4, steps: int = 240, say: Say | None = None
) -> Report:
    """Simulated complexes to a small AF2-multimer that overfits one of them.

    Args:
        out: output folder; an earlier demo in it is continued.
        say: called with a line at the start of each stage; None shows no lines and no bars.

    Raises:
        EvofeedError: a stage failed, or the loss did not fall.
    """
    from evofeed.featurize import FeaturizeConfig
    from evofeed.featurize.assembly_commands import add_complexes
    from evofeed.service import serving
    from evofeed.store import Dataset
    from evofeed.trainer.predict.compare import compare_to_known
    from evofeed.viz import draw_prediction

    began = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    raw = simulate(out / "raw", complexes, say, stoichiometries=_STOICHIOMETRIES, **_SIZES)
    featurize(raw, out / "dataset", say)
    tell(say, "assemblies: the complexes of the chains")
    paths = (str(raw), str(out / "dataset"))
    left_out = add_complexes(*paths, FeaturizeConfig(), quiet=say is None)["dropped"]
    with serving({"demo": str(out / "dataset")}) as url:
        address = f"{url}/v1/datasets/demo"
        tell(say, f"serve: {address}")
        dataset = Dataset.open(address)
        record = largest_interface(dataset)
        name = f"{record.assembly_id} ({record.stoichiometry})"
        tell(say, f"train: {steps} steps of a small AF2-multimer on {name}")
        training = train_small(
            "complexes", dataset, out / "training", steps, say,
            chains=[record.assembly_id], crop_size=record.num_res,
        )  # fmt: skip
        tell(say, f"predict: {name}, before and after")
        first, last = (predict(record, out / "training", trained=t) for t in (False, True))
        before, after = (compare_to_known(p, record) | p.scores for p in (first, last))
        picture = draw_prediction(
            out / "complex.png", contacts=last.contacts, distogram=last.distogram, plddt=last.plddt,
            title=f"{name}: lDDT {after['lddt_ca']:.2f}, DockQ {after['dockq']:.2f}",
            warning=last.warning,
        )  # fmt: skip
        tell(say, f"draw: {picture}")
    del training["data_wait_share"]  # not meaningful: one complex, read once
    report = {
        "dataset": str(out / "dataset"),
        "snapshot": dataset.digest,
        "complexes": len(dataset.assemblies),
        "left_out": len(left_out),
        "shown": name,
        **training,
        **{key: [before[key], after[key]] for key in ("lddt_ca", "dockq", "iptm")},
        "picture": str(picture),
        "seconds": time.perf_counter() - began,
    }
    return write_report(report, out / "report.json")


def largest_interface(dataset: Any) -> AssemblyRecord:
    """The complex with most residues near another chain."""
    table = dataset.assemblies.table.to_pydict()
    pairs = zip(table["num_interface"], table["assembly_id"], strict=True)
    record: AssemblyRecord = dataset.assemblies[max(pairs)[1]]
    return record
