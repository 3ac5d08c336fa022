"""How much of the contacts the alignments themselves give away: a baseline without learning.

    python benchmarks/speedrun/contact_baseline.py DATA/held_out --out contacts.json

Mean-field direct-coupling analysis (Morcos et al. 2011: sequences weighted at 80 % identity, half
the weight on pseudocounts, Frobenius norm without gaps, average product correction) on each
chain's own alignment. Contacts are CB (CA for glycine) within 8 ångström, six or more apart in
sequence; reported is the share of true ones among the L and L/5 strongest pairs, beside the
share among all pairs, which is what chance gives.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from evofeed.residues import ATOM_ORDER
from evofeed.store import Dataset

_LETTERS, _PSEUDO, _MAX_ROWS = 21, 0.5, 1000


def coupling_scores(msa: np.ndarray) -> np.ndarray:
    """Strength of the direct coupling of each pair of columns, `[L, L]`, from `u8[N, L]`."""
    rows, length = msa[:_MAX_ROWS], msa.shape[1]
    weights = 1 / np.array([(np.mean(rows == row, axis=1) > 0.8).sum() for row in rows])
    states = np.zeros((len(rows), length, _LETTERS))
    np.put_along_axis(states, np.minimum(rows, 20).astype(np.int64)[..., None], 1.0, axis=2)
    states = states[..., :20].reshape(len(rows), -1)  # the gap's state follows from the others
    single = (1 - _PSEUDO) * (weights @ states) / weights.sum() + _PSEUDO / _LETTERS
    pair = (1 - _PSEUDO) * (states * weights[:, None]).T @ states / weights.sum()
    pair = pair.reshape(length, 20, length, 20) + _PSEUDO / _LETTERS**2
    for i in range(length):
        pair[i, :, i] = np.diag(single[20 * i : 20 * (i + 1)])
    couplings = -np.linalg.inv(pair.reshape(20 * length, -1) - np.outer(single, single))
    couplings = couplings.reshape(length, 20, length, 20)
    couplings = couplings - couplings.mean(1, keepdims=True) - couplings.mean(3, keepdims=True)
    couplings = couplings - couplings.mean((1, 3), keepdims=True)  # the zero-sum gauge
    scores = np.sqrt((couplings**2).sum((1, 3)))
    np.fill_diagonal(scores, 0)
    return np.asarray(scores - np.outer(scores.mean(0), scores.mean(1)) / scores.mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("dataset")
    parser.add_argument("--chains", type=int, default=40)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    dataset = Dataset.open(options.dataset)
    found = []
    for chain in dataset.index["chain_id"].to_pylist()[: options.chains]:
        record = dataset[chain]
        glycine = record.all_atom_mask[:, ATOM_ORDER["CB"]] == 0
        at = np.where(glycine, ATOM_ORDER["CA"], ATOM_ORDER["CB"])
        each = np.arange(len(at))
        place, known = record.all_atom_positions[each, at], record.all_atom_mask[each, at] > 0
        i, j = np.triu_indices(len(at), 6)
        kept = known[i] & known[j]
        i, j = i[kept], j[kept]
        contact = np.linalg.norm(place[i] - place[j], axis=-1) < 8
        order = np.argsort(-coupling_scores(record.msa)[i, j], kind="stable")
        top = {
            name: contact[order[:n]].mean() for name, n in (("L", len(at)), ("L/5", len(at) // 5))
        }
        found.append({**top, "chance": contact.mean(), "rows": record.num_alignments})
    report = {
        "benchmark": "contact_baseline",
        "command": " ".join(["python benchmarks/speedrun/contact_baseline.py", *sys.argv[1:]]),
        "chains": len(found),
        **{name: round(float(np.mean([x[name] for x in found])), 4) for name in found[0]},
    }
    text = json.dumps(report, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
