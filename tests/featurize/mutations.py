"""Damage for the fuzz suite: a pure function of a file and a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

TOKENS = (
    b"\0", b"\n", b"\r", b"\t", b" ", b"-", b".", b"?", b"'", b'"', b";", b"\n;\n", b"#", b"//",
    b">", b"\n>x\n", b"loop_\n", b"\nloop_\n", b"data_x\n", b"_atom_site.id\n", b"No 1\n", b"Q ",
    b"1e309", b"nan", b"-1", b"0", b"99999999999999999999", b"1e9", b"inf", b"\xff\xfe",
    b"\xe2\x80\xa8", b"A" * 300, b"-" * 300, b"a" * 300, b"\x1b[0m", b"ATOM  ", b"HETATM", b"MODEL",
    b"{", b"}", b"[", b'"', b"null", b"../", b"(1)", b"=", b"%", b"T ", b"\xc3\xbc",
)  # fmt: skip


KINDS = (
    "flip", "insert", "insert", "overwrite", "delete", "truncate", "repeat", "splice", "shuffle",
    "drop a line",
)  # fmt: skip


def mutate(files: Sequence[bytes], seed: str) -> bytes:
    """One of the files with one to six pieces of damage."""
    rng = random.Random(seed)
    data = rng.choice(files)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        data = _damaged(data, rng.choice(KINDS), rng, files)
    return data[: 1 << 20]


def _damaged(data: bytes, kind: str, rng: random.Random, files: Sequence[bytes]) -> bytes:
    lines = data.split(b"\n")
    if kind == "flip":
        if not data:
            return data
        value, position = rng.randrange(256), rng.randrange(len(data))
        return data[:position] + bytes([value]) + data[position + 1 :]
    if kind == "shuffle":
        start = rng.randrange(len(lines))
        block = lines[start : start + 8]
        rng.shuffle(block)
        return b"\n".join([*lines[:start], *block, *lines[start + 8 :]])
    if kind == "drop a line":
        del lines[rng.randrange(len(lines))]
        return b"\n".join(lines)
    if kind == "splice":
        other = rng.choice(files)
        tail = other[rng.randrange(len(other) + 1) :]
        return data[: rng.randrange(len(data) + 1)] + tail
    start = rng.randrange(len(data) + 1)
    if kind in ("insert", "overwrite"):
        token = rng.choice(TOKENS)
        return data[:start] + token + data[start + len(token) * (kind == "overwrite") :]
    if kind == "delete":
        return data[:start] + data[start + rng.choice((1, 2, 10, 100, 1000)) :]
    if kind == "repeat":
        size = rng.choice((1, 5, 60, 400))
        return data[:start] + data[start : start + size] * rng.choice((1, 3, 20)) + data[start:]
    return data[:start]  # truncate
