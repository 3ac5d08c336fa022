"""Simulated alignments and template hits as text in the formats of search tools.

A3M and Stockholm as hhblits and jackhmmer write them, hhr as hhsearch 3 prints it, without the rows
of secondary structure and confidence, so that parsers read the same details as in real files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evofeed.base.shapes import UInt8
from evofeed.protein.residues import GAP, MSA_LETTERS, RESTYPES
from evofeed.synth.evolve import blosum62

_LOWER = np.frombuffer((RESTYPES.lower() + "x\0").encode(), np.uint8)
_STO_WIDTH = 200
_HHR_WIDTH = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A template hit: two aligned rows over the family's columns, and its probability in %."""

    name: str
    description: str
    query: np.ndarray
    template: np.ndarray
    prob: float


def a3m(names: list[str], rows: UInt8[np.ndarray, "n X"]) -> str:
    """Rows as A3M: columns where row 0 has a residue are upper case or `-`, others lower case."""
    is_match = rows[0] != GAP
    text = np.where(is_match, MSA_LETTERS[rows], _LOWER[rows])
    return "".join(
        f">{name}\n{line.tobytes().translate(None, bytes(1)).decode()}\n"
        for name, line in zip(names, text, strict=True)
    )


def stockholm(names: list[str], descriptions: list[str], rows: UInt8[np.ndarray, "n X"]) -> str:
    """Rows as an interleaved Stockholm alignment, as jackhmmer's `-A` writes it."""
    nonempty = rows[:, (rows != GAP).any(axis=0)]
    width = max(map(len, names)) + 1
    out = ["# STOCKHOLM 1.0\n\n"]
    for name, description in zip(names[1:], descriptions[1:], strict=True):
        out.append(f"#=GS {name:<{width}}DE {description}\n")
    text = [line.tobytes().decode() for line in MSA_LETTERS[nonempty]]
    reference = "".join("x" if code != GAP else "." for code in nonempty[0])
    for start in range(0, len(reference), _STO_WIDTH):
        block = slice(start, start + _STO_WIDTH)
        out.append("\n")
        out += [f"{n:<{width}}{line[block]}\n" for n, line in zip(names, text, strict=True)]
        out.append(f"{'#=GC RF':<{width}}{reference[block]}\n")
    return "".join([*out, "//\n"])


def hhr(query_name: str, query: UInt8[np.ndarray, " X"], num_seqs: int, hits: list[Hit]) -> str:
    """An hhsearch report of these hits, best first."""
    length = int((query != GAP).sum())
    head = (
        f"Query         {query_name}\nMatch_columns {length}\nNo_of_seqs    {num_seqs} out of "
        f"{num_seqs}\nNeff          {4 + num_seqs % 7:.1f}\n"
        f"Searched_HMMs {max(len(hits), 1) * 80}\n"
        "Date          Mon Jan  4 12:00:00 2021\n"
        "Command       hhsearch -i query.a3m -o output.hhr -maxseq 1000000 -d pdb70\n\n"
        " No Hit                             Prob E-value P-value  Score    SS Cols "
        "Query HMM  Template HMM\n"
    )
    parts = [_hit_text(k + 1, query_name, length, hit) for k, hit in enumerate(hits)]
    return head + "".join(row for row, _ in parts) + "\n" + "".join(b for _, b in parts) + "Done!\n"


def _hit_text(number: int, query_name: str, query_length: int, hit: Hit) -> tuple[str, str]:
    """One hit: its row in the table and its alignment block."""
    aligned = np.flatnonzero((hit.query != GAP) & (hit.template != GAP))
    span = slice(aligned[0], aligned[-1] + 1)
    q_all, t_all = hit.query, hit.template
    mask = (q_all[span] != GAP) | (t_all[span] != GAP)
    q, t = q_all[span][mask], t_all[span][mask]
    q_start = int((q_all[: span.start] != GAP).sum())
    t_start = int((t_all[: span.start] != GAP).sum())
    q_end, t_end = q_start + int((q != GAP).sum()), t_start + int((t != GAP).sum())
    t_length = int((t_all != GAP).sum())
    pairs = (q < 20) & (t < 20)
    scores, same = blosum62()[q[pairs], t[pairs]], int((q[pairs] == t[pairs]).sum())
    cols = len(aligned)
    score = max(5.0, float(scores.sum()) * 0.35)
    e_value = 10.0 ** (-score / 8 + 6)
    label = f"{hit.name} {hit.description}"
    row = (
        f"{number:3d} {label:<30.30s} {hit.prob:5.1f} {e_value:7.2G} {e_value / 8e4:7.2G} "
        f"{score:6.1f} {0.0:5.1f} {cols:4d} {q_start + 1:4d}-{q_end:<4d} "
        f"{t_start + 1:4d}-{t_end:<4d}({t_length})\n"
    )
    block = (
        f"No {number}\n>{label}\n"
        f"Probab={hit.prob:.2f}  E-value={e_value:.2g}  Score={score:.2f}  Aligned_cols={cols}  "
        f"Identities={100 * same / cols:.0f}%  Similarity={scores.mean() / 4:.3f}  "
        f"Sum_probs={cols * hit.prob / 100 * 0.92:.1f}  Template_Neff={5 + number % 6:.3f}\n\n"
    )
    block += _blocks((query_name, q, q_start, query_length), (hit.name, t, t_start, t_length))
    return row, block + "\n"


_Side = tuple[str, np.ndarray, int, int]
"""Name, aligned row, number of residues before it, length of the full sequence."""


def _blocks(query: _Side, template: _Side) -> str:
    """Blocks of 80 columns, the query's row above the template's."""
    sides = [("Q", *query), ("T", *template)]
    position = {letter: start for letter, _, _, start, _ in sides}
    out = []
    for begin in range(0, len(query[1]), _HHR_WIDTH):
        for letter, name, row, _, length in sides:
            text = MSA_LETTERS[row[begin : begin + _HHR_WIDTH]].tobytes().decode()
            end = position[letter] + len(text.replace("-", ""))
            # hhsearch prints the last residue's number at both ends of an all-gap stretch
            start = min(position[letter] + 1, end)
            for title, letters in (("Consensus", text.lower()), (name, text)):
                out.append(f"{letter} {title:<14.14s} {start:4d} {letters} {end:4d} ({length})\n")
            position[letter] = end
        out.append("\n")
    return "".join(out)
