"""Damage that real data has, done on purpose: each kind once in turn, listed with its reason."""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True, slots=True)
class Damage:
    """One way to break a chain.

    Attributes:
        kind: its name in `broken.json`.
        file: which file of the chain suffers.
        reason: what is wrong afterwards.
        apply: from the good text to the bad one; None removes the file.
        fatal: no features can be made; otherwise the chain lives, with a note.
    """

    kind: str
    file: str
    reason: str
    apply: Callable[[str], str] | None
    fatal: bool = True


def damage(root: Path, fraction: float, seed: int) -> list[dict[str, str]]:
    """Break that fraction of the chains under `root` (at least one) and say which and how."""
    chains = sorted(path.name for path in (root / "alignments").iterdir())
    count = max(1, round(fraction * len(chains)))
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, 2**31 + 1])))
    picked = rng.permutation(len(chains))[:count]
    listed = []
    for k, chain in enumerate(chains[i] for i in picked):
        how = DAMAGES[k % len(DAMAGES)]
        path = _path(root, chain, how.file)
        if how.apply is None:
            path.unlink()
        else:
            path.write_bytes(how.apply(path.read_text()).encode())
        listed.append(
            {
                "chain_id": chain,
                "kind": how.kind,
                "file": str(path.relative_to(root)),
                "reason": how.reason,
                "outcome": "error" if how.fatal else "note",
            }
        )
    return sorted(listed, key=lambda item: item["chain_id"])


def _path(root: Path, chain: str, file: str) -> Path:
    if file == "cif":
        return root / "mmcif" / f"{chain.rpartition('_')[0]}.cif"
    return root / "alignments" / chain / file


def _cut(text: str) -> str:
    """Without the last third, in the middle of a line."""
    return text[: len(text) * 2 // 3].rstrip("\n")[:-9]


def _without_sequence(text: str) -> str:
    """Without the `_entity_poly_seq` loop."""
    before, _, rest = text.partition("loop_\n_entity_poly_seq.")
    return before + rest.partition("#\n")[2]


def _other_chain(text: str) -> str:
    """With another author chain id on every atom."""
    out = []
    for line in text.splitlines(keepends=True):
        if line.startswith(("ATOM", "HETATM")):
            words = line.split()
            words[18] = "Q"
            line = " ".join(words) + "\n"
        out.append(line)
    return "".join(out)


def _fewer_columns(row: str) -> str:
    return row.rstrip(string.ascii_lowercase)[:-2]  # insertions at the end are no columns


def _on_row(change: Callable[[str], str]) -> Callable[[str], str]:
    """Apply a change to the last sequence line of an a3m."""

    def apply(text: str) -> str:
        lines = text.splitlines()
        lines[-1] = change(lines[-1])
        return "\n".join(lines) + "\n"

    return apply


def _shorter_query(text: str) -> str:
    """Alignment of a chain that lacks the last residues: it belongs to another one."""
    out = []
    for line in text.splitlines():
        keep, upper = line, 0
        if not line.startswith(">"):
            total = sum(c.isupper() or c == "-" for c in line)
            for at, letter in enumerate(line):
                upper += letter.isupper() or letter == "-"
                if upper > total - 5:
                    keep = line[:at]
                    break
        out.append(keep)
    return "\n".join(out) + "\n"


def _third_token(text: str) -> str:
    """A Stockholm row with a blank inside its residues."""
    lines = text.splitlines()
    at = max(i for i, line in enumerate(lines) if line and not line.startswith(("#", "/")))
    lines[at] = lines[at][:-3] + " " + lines[at][-3:]
    return "\n".join(lines) + "\n"


def _bad_statistics(text: str) -> str:
    return text.replace("Aligned_cols=", "Aligned_cols=many", 1)


_A3M, _STO, _HHR = "bfd_uniclust_hits.a3m", "uniref90_hits.sto", "pdb70_hits.hhr"

DAMAGES = (
    Damage("cif_truncated", "cif", "the download stopped inside the atom list", _cut),
    Damage("a3m_ragged", _A3M, "a row lacks columns", _on_row(_fewer_columns)),
    Damage("cif_html", "cif", "an error page instead of a structure", lambda _: _ERROR_PAGE),
    Damage("sto_truncated", _STO, "the last block stops half-way", _cut),
    Damage("cif_missing", "cif", "no structure: only the sequence is known", None, fatal=False),
    Damage("a3m_letters", _A3M, "a row holds digits", _on_row(lambda row: "4" + row[1:])),
    Damage("a3m_query", _A3M, "the query is five residues shorter", _shorter_query),
    Damage("cif_sequence", "cif", "no _entity_poly_seq", _without_sequence),
    Damage("sto_tokens", _STO, "a row has three words", _third_token),
    Damage("hhr_statistics", _HHR, "a hit's statistics are not numbers", _bad_statistics),
    Damage("cif_chain", "cif", "the chain has another name in the structure", _other_chain),
    Damage("a3m_nul", _A3M, "a row holds a NUL byte", _on_row(lambda row: row[:-1] + "\0")),
    Damage("a3m_empty", _A3M, "the file is empty", lambda _: ""),
)
"""All the kinds, in the order in which chains get them."""

_ERROR_PAGE = "<html><body><h1>404 Not Found</h1></body></html>\n"
