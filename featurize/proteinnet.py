"""ProteinNet `.core` text -> `Structure`: one chain, backbone atoms only."""

from __future__ import annotations

import numpy as np

from evofeed.errors import MmcifError
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.structure import Chain, Structure
from evofeed.residues import ATOM37_NUM, ATOM_ORDER, RESTYPES

_PICOMETRE = 0.01
"""In ångström."""


def parse_proteinnet(
    data: bytes, *, file_id: str, path: str = "", config: FeaturizeConfig | None = None
) -> Structure:
    """The chain of a ProteinNet record; unknown letters become X.

    Sections `[PRIMARY]`, `[TERTIARY]` (three lines x, y, z in picometres over N,
    CA, C of each residue) and `[MASK]` (`+` observed) are read, others skipped.
    The chain has whatever id one asks for: the format names none.

    Raises:
        MmcifError: a section is missing or the lengths do not fit.
    """
    config = config or FeaturizeConfig()
    sections = _sections(data.decode("utf-8", "replace"))
    try:
        sequence = "".join(sections["[PRIMARY]"]).strip().upper()
        observed = np.array([c == "+" for c in "".join(sections["[MASK]"]).strip()], bool)
        rows = [np.array(line.split(), np.float64) for line in sections["[TERTIARY]"]]
        xyz = np.stack(rows).reshape(3, len(sequence), 3)
    except KeyError as error:
        raise MmcifError(f"section {error} is missing", path=path or None) from None
    except ValueError as error:
        raise MmcifError(f"[TERTIARY] does not fit: {error}", path=path or None) from None
    num_res = len(sequence)
    if not 0 < num_res <= config.caps.max_columns or len(observed) != num_res:
        raise MmcifError(
            f"{num_res} residues, {len(observed)} in [MASK], cap {config.caps.max_columns}",
            path=path or None,
        )
    if not np.all(np.abs(xyz) < 1e9):  # NaN fails too
        raise MmcifError("[TERTIARY] holds a value that is no position", path=path or None)
    sequence = "".join(letter if letter in RESTYPES else "X" for letter in sequence)
    backbone = [ATOM_ORDER[name] for name in ("N", "CA", "C")]
    positions = np.zeros([num_res, ATOM37_NUM, 3], np.float32)
    positions[:, backbone] = xyz.transpose(1, 2, 0)
    positions *= np.float32(_PICOMETRE)
    mask = np.zeros([num_res, ATOM37_NUM], np.uint8)
    mask[:, backbone] = observed[:, None]
    chain = Chain("", sequence, positions, mask, observed)
    return Structure(
        file_id=file_id,
        method="",
        release_date="",
        resolution=0.0,
        sequences={"": sequence},
        place=lambda _: chain,
        kind="proteinnet",
    )


def _sections(text: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("[") and line.rstrip().endswith("]"):
            lines = sections.setdefault(line.strip(), [])
        elif line.strip():
            lines.append(line)
    return sections
