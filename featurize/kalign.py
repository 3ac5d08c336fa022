"""Two sequences aligned by kalign, as OpenFold and AlphaFold 2 call it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import numpy as np

from evofeed.errors import InputError, TemplateError
from evofeed.shapes import Int

_SHORTEST: Final = 6
"""Residues that kalign wants at least."""
_SECONDS: Final = 300


def kalign_onto(old: str, new: str) -> Int[np.ndarray, " P"]:
    """Position in `new` of each letter of `old`, -1 where kalign gives it none.

    Raises:
        TemplateError: a sequence is too short for kalign, or it failed.
        InputError: kalign is not on the PATH.
    """
    program = shutil.which("kalign")
    if program is None:
        raise InputError("kalign is not on the PATH: install it, or leave realign='biopython'")
    if min(len(old), len(new)) < _SHORTEST:
        raise TemplateError(f"{min(len(old), len(new))} residues: kalign wants {_SHORTEST}")
    with tempfile.TemporaryDirectory(prefix="evofeed-kalign-") as folder:
        given, made = Path(folder) / "input.fasta", Path(folder) / "output.a3m"
        given.write_text(f">sequence 1\n{old}\n>sequence 2\n{new}\n")
        command = [program, "-i", str(given), "-o", str(made), "-format", "fasta"]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,  # kalign 3 reads a pipe that is there too
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TemplateError(f"kalign took more than {_SECONDS} s") from None
        if done.returncode or not made.is_file():
            said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-200:]
            raise TemplateError(f"kalign failed: {said}")
        text = made.read_text()
    rows = ["".join(record.split("\n")[1:]) for record in text.split(">")[1:]]
    if len(rows) != 2 or [row.replace("-", "").upper() for row in rows] != [old, new]:
        raise TemplateError("kalign wrote other sequences than it was given")
    return _facing(*rows)


def _facing(old: str, new: str) -> Int[np.ndarray, " P"]:
    """Of two aligned rows: position in the second of each letter of the first."""
    a, b = (np.frombuffer(row.encode("ascii"), np.uint8) != ord("-") for row in (old, new))
    position = np.where(b, np.cumsum(b) - 1, -1)
    found: Int[np.ndarray, " P"] = position[a].astype(np.int64)
    return found
