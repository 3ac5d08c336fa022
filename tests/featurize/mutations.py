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


def mutate(files: Sequence[bytes], seed: str) -> bytes:
    """One of the files with one to six pieces of damage."""
    rng = random.Random(seed)
    data = bytearray(rng.choice(files))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        rng.choice(_DAMAGES)(data, rng, files)
    return bytes(data[: 1 << 20])


def _place(data: bytearray, rng: random.Random) -> int:
    return rng.randrange(len(data) + 1)


def _flip(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _insert(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    at = _place(data, rng)
    data[at:at] = rng.choice(TOKENS)


def _overwrite(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    at, token = _place(data, rng), rng.choice(TOKENS)
    data[at : at + len(token)] = token


def _delete(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    at = _place(data, rng)
    del data[at : at + rng.choice((1, 2, 10, 100, 1000))]


def _truncate(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    del data[_place(data, rng) :]


def _repeat(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    at, size = _place(data, rng), rng.choice((1, 5, 60, 400))
    data[at:at] = data[at : at + size] * rng.choice((1, 3, 20))


def _splice(data: bytearray, rng: random.Random, files: Sequence[bytes]) -> None:
    other = rng.choice(files)
    at = rng.randrange(len(other) + 1)
    data[_place(data, rng) :] = other[at:]


def _shuffle_lines(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    lines = bytes(data).split(b"\n")
    start = rng.randrange(len(lines))
    some = lines[start : start + 8]
    rng.shuffle(some)
    lines[start : start + 8] = some
    data[:] = b"\n".join(lines)


def _drop_line(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    lines = bytes(data).split(b"\n")
    del lines[rng.randrange(len(lines))]
    data[:] = b"\n".join(lines)


_DAMAGES = (
    _flip, _insert, _insert, _overwrite, _delete, _truncate, _repeat, _splice, _shuffle_lines,
    _drop_line,
)  # fmt: skip
