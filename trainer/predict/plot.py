"""A picture of a prediction: where contacts are expected, and how sure the model is."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evofeed.trainer.predict.prediction import Prediction

# Confidence bands as AlphaFold DB colours them: lower edge, colour.
_BANDS = ((0, "#ff7d45"), (50, "#ffdb13"), (70, "#65cbf3"), (90, "#0053d6"))


def plot_prediction(prediction: Prediction, path: str | Path, *, title: str = "") -> None:
    """Draw contact probabilities, expected distances and pLDDT into an image file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    contacts, distances, confidence = figure.subplots(1, 3)
    image = contacts.imshow(prediction.contacts, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=contacts, label="probability of CB within 8 Å")
    contacts.set_title("contacts")
    image = distances.imshow(_expected_distance(prediction.distogram), cmap="viridis_r")
    figure.colorbar(image, ax=distances, label="expected CB distance, Å (up to 22)")
    distances.set_title("distogram")
    number = prediction.structure.residue_index + 1
    edges = np.array([edge for edge, _ in _BANDS])
    band = np.searchsorted(edges, prediction.plddt, side="right") - 1
    confidence.bar(number, prediction.plddt, width=1.0, color=[_BANDS[i][1] for i in band])
    confidence.set(xlabel="residue", ylabel="pLDDT", ylim=(0, 100))
    confidence.set_title(f"confidence, mean {prediction.plddt.mean():.1f}")
    for axes in (contacts, distances):
        axes.set(xlabel="residue", ylabel="residue")
    figure.suptitle(title or prediction.structure.name)
    figure.savefig(path, dpi=120)


def _expected_distance(distogram: np.ndarray) -> np.ndarray:
    """Mean over bins, ångström; the last bin, which has no upper edge, counts as its lower one."""
    edges = np.linspace(2.3125, 21.6875, distogram.shape[-1] - 1)
    step = edges[1] - edges[0]
    centres = np.concatenate([[edges[0] - step / 2], edges[:-1] + step / 2, [edges[-1]]])
    # Row by row: those of a long chain are in float16, and a machine does not hold them as float64.
    return np.stack([row @ centres for row in distogram]).astype(np.float32)
