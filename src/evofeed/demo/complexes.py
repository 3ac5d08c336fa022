"""The whole path of complexes: files, shards, service, training, a prediction on the truth."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from evofeed.demo.path import (
    Report,
    Rows,
    Say,
    featurize,
    keep,
    rows_of_training,
    simulate,
    tell,
    train_preset,
)
from evofeed.protein.assembly_record import AssemblyRecord

_STOICHIOMETRIES: Final = ("A2", "AB")
_SIZES: Final = {"mean_length": 30, "mean_depth": 40, "mean_members": 2}


def rows(report: Report) -> Rows:
    """The report of the demo of complexes; scores are those before training and after."""
    good = f"{report['complexes']} good, {report['left_out']} left out, in {report['dataset']}"
    return [
        ("complexes", good),
        *rows_of_training(report),
        ("learnt by heart", report["shown"]),
        ("interface lDDT", "{1:.3f}, {0:.3f} untrained".format(*report["interface_lddt"])),
        # Untrained, all residues are in one place, so all contacts are kept: DockQ is not 0.
        ("DockQ", "{1:.3f}, {0:.3f} untrained (all in one place)".format(*report["dockq"])),
        ("ipTM", "{1:.3f}, {0:.3f} untrained".format(*report["iptm"])),
        ("picture", report["picture"]),
        ("all in all", f"{report['seconds']:.0f} s"),
    ]


def run_complexes(
    out: Path, *, complexes: int = 4, steps: int = 240, say: Say | None = None
) -> Report:
    """Simulated complexes to a small AF2-multimer that learns one of them by heart.

    Args:
        out: folder for everything the demo makes; an earlier demo there is continued.
        complexes: how many to simulate.
        steps: training steps.
        say: gets a line at the start of each stage; None shows nothing, no bars either.

    Raises:
        EvofeedError: a stage failed, or the loss did not fall.
    """
    from evofeed.service import serving
    from evofeed.store import Dataset
    from evofeed.viz import draw_complex

    began = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    raw = simulate(out / "raw", complexes, say, stoichiometries=_STOICHIOMETRIES, **_SIZES)
    featurize(raw, out / "dataset", say)
    left_out = _add(raw, out / "dataset", say)
    with serving({"demo": str(out / "dataset")}) as url:
        address = f"{url}/v1/datasets/demo"
        tell(say, f"serve: {address}")
        dataset = Dataset.open(address)
        record = largest_interface(dataset)
        name = f"{record.assembly_id} ({record.stoichiometry})"
        tell(say, f"train: {steps} steps of a small AF2-multimer on {name}")
        training = train_preset(
            dataset, out / "training", steps, say is not None, "tiny_multimer",
            **_by_heart(record),
        )  # fmt: skip
        tell(say, f"predict: {name}, before and after")
        first, last = (predicted(record, out / "training", trained=t) for t in (False, True))
        picture = draw_complex(
            out / "complex.png", *last.traces, last.chain, last.distances,
            f"{name}: interface lDDT {last.scores['interface_lddt']:.2f}, "
            f"DockQ {last.scores['dockq']:.2f}",
        )  # fmt: skip
        tell(say, f"draw: {picture}")
    del training["data_wait_share"]  # of one complex, read once
    report = {
        "dataset": str(out / "dataset"),
        "snapshot": dataset.digest,
        "complexes": len(dataset.assemblies),
        "left_out": left_out,
        "shown": name,
        **training,
        **{key: [first.scores[key], last.scores[key]] for key in first.scores},
        "picture": str(picture),
        "seconds": time.perf_counter() - began,
    }
    return keep(report, out / "report.json")


def _add(raw: Path, folder: Path, say: Say | None) -> int:
    """Put the complexes of raw files beside their chains, once; how many were left out."""
    from evofeed.featurize import assembly_sources, discover, featurize_assembly
    from evofeed.store import Dataset, add_assemblies

    dataset = Dataset.open(folder)
    sources = assembly_sources(discover(raw))
    if list(dataset.assemblies) != [source.assembly_id for source in sources]:
        tell(say, "assemblies: the complexes of the chains")
        add_assemblies(dataset, [featurize_assembly(one, dataset.__getitem__) for one in sources])
    return len(sources) - len(Dataset.open(folder).assemblies)


def largest_interface(dataset: Any) -> AssemblyRecord:
    """The complex of most residues near another chain."""
    table = dataset.assemblies.table.to_pydict()
    pairs = zip(table["num_interface"], table["assembly_id"], strict=True)
    record: AssemblyRecord = dataset.assemblies[max(pairs)[1]]
    return record


def _by_heart(record: AssemblyRecord) -> dict[str, Any]:
    """Settings with which a few hundred steps are enough for one complex, as in `overfit`."""
    none = {"msa_dropout": 0.0, "pair_dropout": 0.0}
    return {
        "model": {
            "template": None,
            "evoformer": none,
            "extra_msa": none,
            "structure_module": {"dropout_rate": 0.0},
        },
        "loss": {"masked_msa": 0.1, "fape": 4.0, "distogram": 2.0, "violation": 0.0},
        "loader": {
            "chains": [record.assembly_id],
            "crop_size": record.num_res,
            "clamp_prob": 0.0,
            "num_blocks": 0,
            "max_recycling_iters": 0,
        },
    }


class Shown(NamedTuple):
    """A prediction beside the truth, whose equal chains are in the order that fits it best."""

    traces: tuple[np.ndarray, np.ndarray]
    """CA atoms as predicted, superposed, and as they are, `[n, 3]`."""
    chain: np.ndarray
    """Of each of them."""
    distances: tuple[np.ndarray, np.ndarray]
    """Predicted and true between CB atoms, `[L, L]`, NaN where unknown."""
    scores: dict[str, float]
    """`interface_lddt`, `dockq`, `iptm`."""


def predicted(record: AssemblyRecord, run: Path, *, trained: bool) -> Shown:
    """A complex by the weights of a run, or by those it began with."""
    import torch

    from evofeed.protein.assembly_numbers import assembly_distances
    from evofeed.protein.chain_numbers import superposed
    from evofeed.protein.residues import ATOM_ORDER
    from evofeed.trainer.predict import prediction as predicting
    from evofeed.trainer.predict.compare import labels_of
    from evofeed.trainer.predict.weights import load_model, trained_sizes
    from evofeed.trainer.run.build import build_plain
    from evofeed.trainer.run.settings import load_config
    from evofeed.trainer.run.validation import complex_metrics
    from evofeed.viz import expected_distances

    untrained = build_plain(load_config(str(run / "config.yaml")))
    model = load_model(run) if trained else untrained
    sizes = trained_sizes(run) | {"no_recycling_iters": 0}
    batch = predicting.prediction_batch(record, model, **sizes)
    made = predicting.predict_structure(model, batch)
    pred = torch.as_tensor(made.structure.positions)[None].float()
    labels = dict(labels_of(pred, record))
    found = complex_metrics({"final_atom_positions": pred}, labels)
    scores = {name: float(value.mean()) for name, value in found.items()}
    ca = ATOM_ORDER["CA"]
    here = labels["all_atom_mask"][0, :, ca].numpy() > 0
    true = labels["all_atom_positions"][0, :, ca].double().numpy()[here]
    moved = superposed(made.structure.positions[here, ca].astype(float), true)
    chain = record.asym_id()
    distance, _ = assembly_distances(record, 0)
    return Shown(
        (moved, true),
        chain[here],
        (expected_distances(made.distogram), distance),
        scores | {"iptm": made.scores["iptm"]},
    )
