"""Simulated chains as the text that search tools and the PDB would have written.

A3M and Stockholm as hhblits and jackhmmer lay them out, hhr as hhsearch 3 prints
it, every column in its place: parsers must meet here what they meet outside.
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
    """A template hit: two aligned rows over the family's columns, and how good it is."""

    name: str
    description: str
    query: np.ndarray
    template: np.ndarray
    ss: str
    prob: float


def a3m(names: list[str], rows: UInt8[np.ndarray, "n X"]) -> str:
    """Rows as A3M: columns where row 0 has a residue are upper case or `-`, others lower case."""
    match = rows[0] != GAP
    text = np.where(match, MSA_LETTERS[rows], _LOWER[rows])
    return "".join(
        f">{name}\n{line.tobytes().translate(None, bytes(1)).decode()}\n"
        for name, line in zip(names, text, strict=True)
    )


def stockholm(names: list[str], descriptions: list[str], rows: UInt8[np.ndarray, "n X"]) -> str:
    """Rows as an interleaved Stockholm alignment, as jackhmmer's `-A` writes it."""
    used = rows[:, (rows != GAP).any(axis=0)]
    width = max(map(len, names)) + 1
    out = ["# STOCKHOLM 1.0\n\n"]
    for name, description in zip(names[1:], descriptions[1:], strict=True):
        out.append(f"#=GS {name:<{width}}DE {description}\n")
    text = [line.tobytes().decode() for line in MSA_LETTERS[used]]
    columns = "".join("x" if code != GAP else "." for code in used[0])
    for start in range(0, len(columns), _STO_WIDTH):
        cut = slice(start, start + _STO_WIDTH)
        out.append("\n")
        out += [f"{n:<{width}}{line[cut]}\n" for n, line in zip(names, text, strict=True)]
        out.append(f"{'#=GC RF':<{width}}{columns[cut]}\n")
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
    parts = [_alignment(k + 1, query_name, length, hit) for k, hit in enumerate(hits)]
    return head + "".join(row for row, _ in parts) + "\n" + "".join(b for _, b in parts) + "Done!\n"


def _alignment(number: int, query_name: str, query_length: int, hit: Hit) -> tuple[str, str]:
    """One hit: its row in the table and its alignment block."""
    both = np.flatnonzero((hit.query != GAP) & (hit.template != GAP))
    span = slice(both[0], both[-1] + 1)
    q_all, t_all = hit.query, hit.template
    keep = (q_all[span] != GAP) | (t_all[span] != GAP)
    q, t = q_all[span][keep], t_all[span][keep]
    q_start = int((q_all[: both[0]] != GAP).sum())
    t_start = int((t_all[: both[0]] != GAP).sum())
    q_end, t_end = q_start + int((q != GAP).sum()), t_start + int((t != GAP).sum())
    t_length = int((t_all != GAP).sum())
    scores, same = _similarity(q, t)
    cols = len(both)
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
    ss = hit.ss[t_start:t_end]
    block += _blocks(query_name, q, q_start, query_length, hit.name, t, t_start, t_length, ss)
    return row, block + "\n"


def _blocks(
    q_name: str,
    q: np.ndarray,
    q_start: int,
    q_length: int,
    t_name: str,
    t: np.ndarray,
    t_start: int,
    t_length: int,
    ss: str,
) -> str:
    q_text, t_text = MSA_LETTERS[q].tobytes().decode(), MSA_LETTERS[t].tobytes().decode()
    ss_text, letters_left = [], iter(ss)
    for letter in t_text:
        ss_text.append("-" if letter == "-" else next(letters_left))
    marks = _marks(q, t)
    out = []
    q_at, t_at = q_start, t_start
    for start in range(0, len(q_text), _HHR_WIDTH):
        cut = slice(start, start + _HHR_WIDTH)
        q_end = q_at + len(q_text[cut].replace("-", ""))
        t_end = t_at + len(t_text[cut].replace("-", ""))
        # hhsearch prints the last residue's number at both ends of an all-gap stretch
        q_from, t_from = min(q_at + 1, q_end), min(t_at + 1, t_end)
        q_line, t_line = f" {q_from:4d} {q_text[cut]} {q_end:4d} ({q_length})\n", t_text[cut]
        ss_line = "".join(ss_text[cut])
        out += [
            f"Q {q_name:<14.14s}" + q_line,
            f"Q {'Consensus':<14s} {q_from:4d} {q_text[cut].lower()} {q_end:4d} ({q_length})\n",
            f"{'':22s}{marks[cut]}\n",
            f"T {'Consensus':<14s} {t_from:4d} {t_line.lower()} {t_end:4d} ({t_length})\n",
            f"T {t_name:<14.14s} {t_from:4d} {t_line} {t_end:4d} ({t_length})\n",
            f"T {'ss_dssp':<20s}{ss_line}\n",
            f"T {'ss_pred':<20s}{ss_line}\n",
            f"{'Confidence':<22s}{''.join(' ' if m == ' ' else '8' for m in marks[cut])}\n\n",
        ]
        q_at, t_at = q_end, t_end
    return "".join(out)


def _similarity(q: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, int]:
    """BLOSUM62 scores of the columns both have, and how many are identical."""
    both = (q < 20) & (t < 20)
    return blosum62()[q[both], t[both]], int((q[both] == t[both]).sum())


def _marks(q: np.ndarray, t: np.ndarray) -> str:
    """hhsearch's line between the two: `|` identical, `+` similar, `.` neutral, else `-` or `=`."""
    both = (q < 20) & (t < 20)
    score = np.full(len(q), -99)
    score[both] = blosum62()[q[both], t[both]]
    marks = np.select(
        [~both, (q == t) & both, score > 0, score == 0, score > -3], list(" |+.-"), default="="
    )
    return "".join(marks)
