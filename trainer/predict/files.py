"""A prediction as files: structure, scores, aligned errors, in the forms other tools read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from evofeed.base.files import parse_json, write_atomic
from evofeed.trainer.predict.prediction import Prediction

MAX_PAE = 31.75
"""Centre of the last bin of aligned errors, ångström; AlphaFold DB's name for it."""


def write_prediction(
    prediction: Prediction,
    structure: Path,
    *,
    facts: dict[str, Any] | None = None,
    distogram: bool = False,
) -> dict[str, Any]:
    """Write a prediction's files beside each other, `*_scores.json` last.

    Beside `x.cif` (ModelCIF) or `x.pdb` lie `x_scores.json` (the fields of ColabFold's scores,
    and those of `facts`), of models with that head `x_predicted_aligned_error.json` (AlphaFold
    DB's form), and on demand `x_distogram.npz` (`bin_edges` in ångström, `probs [L, L, 64]`).

    Args:
        structure: file for the atoms, .cif or .pdb; the others take its stem.
        facts: more for the scores, such as the weights' name and a comparison with the truth.

    Returns:
        What `summary` gives, with `facts` and the files' names.
    """
    stem = structure.with_suffix("")
    files = {"structure": structure.name}
    write_atomic(structure, prediction.text(structure.suffix.lstrip(".")))
    if prediction.pae is not None:
        files["predicted_aligned_error"] = f"{stem.name}_predicted_aligned_error.json"
        content = [
            {
                "predicted_aligned_error": prediction.pae.round().astype(int).tolist(),
                "max_predicted_aligned_error": MAX_PAE,
            }
        ]
        write_atomic(stem.with_name(files["predicted_aligned_error"]), json.dumps(content))
    if distogram:
        files["distogram"] = f"{stem.name}_distogram.npz"
        bins = prediction.distogram.shape[-1]
        np.savez_compressed(
            stem.with_name(files["distogram"]),
            bin_edges=np.linspace(2.3125, 21.6875, bins - 1),
            probs=prediction.distogram.astype(np.float16),
        )
    files["scores"] = f"{stem.name}_scores.json"
    found = {**summary(prediction), **(facts or {}), "files": files}
    arrays: dict[str, Any] = {"plddt": _rounded(prediction.plddt)}
    if prediction.pae is not None:
        arrays |= {
            "max_pae": round(float(prediction.pae.max()), 2), "pae": _rounded(prediction.pae),
        }  # fmt: skip
    write_atomic(stem.with_name(files["scores"]), json.dumps(found | arrays))
    return found


def read_summary(scores: Path) -> dict[str, Any] | None:
    """What `write_prediction` returned for this file of scores; None where it is not whole."""
    try:
        found = parse_json(scores.read_text())
        names = found["files"].values()
        whole = all(scores.with_name(name).is_file() for name in names)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
    return {k: v for k, v in found.items() if k not in ("plddt", "pae")} if whole else None


def summary(prediction: Prediction) -> dict[str, Any]:
    """`name`, `residues`, `mean_plddt`, the model's scores, `ranking_confidence`, `warning`.

    The last is what AlphaFold ranks by: 0.8 ipTM + 0.2 pTM of a complex, else the mean pLDDT.
    """
    mean = float(prediction.plddt.mean())
    return {
        "name": prediction.structure.name,
        "residues": len(prediction.plddt),
        "mean_plddt": round(mean, 2),
        **{name: round(value, 4) for name, value in prediction.scores.items()},
        "ranking_confidence": round(prediction.scores.get("ranking", mean), 4),
        "warning": prediction.warning,
    }


def _rounded(values: np.ndarray) -> list[Any]:
    return np.round(values.astype(float), 2).tolist()  # type: ignore[no-any-return]
