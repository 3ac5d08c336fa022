"""Amino acids: their letters, atoms and codes, in the orders AlphaFold2 fixed.

`RESTYPES` order is the order of `aatype` and of the stored `msa` (20 amino
acids, then X=20, gap=21). OpenFold's raw feature dict has HHblits order
(alphabetical by letter). Atom names and orders: AF2 SI 1.2.1, table 2.
"""

from __future__ import annotations

from typing import Final

import numpy as np

RESTYPES: Final = "ARNDCQEGHILKMFPSTWYV"
"""One-letter codes in AF2 order; index = `aatype`."""
RESTYPE_NUM: Final = 20
UNKNOWN: Final = 20
"""`aatype` of X and of all other residues that are not one of the twenty."""
GAP: Final = 21
MASK: Final = 22
"""The [MASK] token of masked-MSA training; never stored."""

RESTYPE_3: Final = (
    "ALA ARG ASN ASP CYS GLN GLU GLY HIS ILE LEU LYS MET PHE PRO SER THR TRP TYR VAL".split()
)

ATOM_TYPES: Final = (
    "N CA C CB O CG CG1 CG2 OG OG1 SG CD CD1 CD2 ND1 ND2 OD1 OD2 SD "
    "CE CE1 CE2 CE3 NE NE1 NE2 OE1 OE2 CH2 NH1 NH2 OH CZ CZ2 CZ3 NZ OXT"
).split()
"""The 37 heavy-atom names of the `atom37` layout, in order."""
ATOM_ORDER: Final = {name: i for i, name in enumerate(ATOM_TYPES)}
ATOM37_NUM: Final = 37

MSA_LETTERS: Final = np.frombuffer(f"{RESTYPES}X-".encode(), np.uint8)
"""`u8[22]`, the ASCII letter of each code of `msa`."""

HHBLITS_LETTERS: Final = "ACDEFGHIKLMNPQRSTVWYX-"
"""HHblits alphabet: its index is the code in OpenFold's raw `msa`."""

# Ambiguous letters as hhblits reads them: B (Asx) is D, Z (Glx) is E, U
# (selenocysteine) is C; J and O have no counterpart and become X.
_HHBLITS_ALIASES: Final = {"B": "D", "Z": "E", "U": "C", "J": "X", "O": "X"}


def _code_tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    restypes = MSA_LETTERS.tobytes().decode()
    hhblits_to_restype = np.array([restypes.index(c) for c in HHBLITS_LETTERS], np.uint8)
    restype_to_hhblits = np.array([HHBLITS_LETTERS.index(c) for c in restypes], np.uint8)
    letter_to_restype = np.full(256, 255, np.uint8)
    for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ-":
        letter_to_restype[ord(letter)] = restypes.index(_HHBLITS_ALIASES.get(letter, letter))
    return hhblits_to_restype, restype_to_hhblits, letter_to_restype


HHBLITS_TO_RESTYPE, RESTYPE_TO_HHBLITS, MSA_LETTER_TO_RESTYPE = _code_tables()
"""`u8[22]`, `u8[22]` between the two code orders, and `u8[256]` from an ASCII
letter of an alignment to its `msa` code; 255 marks a byte that is not a residue."""
