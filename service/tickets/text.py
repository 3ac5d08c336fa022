"""What clients of the ColabFold protocol send, and the files of their results."""

from __future__ import annotations

import email
import email.policy
import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl

from evofeed.base.errors import InputError
from evofeed.featurize import search

_LETTERS: Final = re.compile(r"[A-Za-z]+")


def form_of(kind: str, body: bytes) -> dict[str, str]:
    """Fields of a form, as browsers and programs send them.

    Raises:
        InputError: it is no form, or not in ASCII.
    """
    try:
        if kind.lower().startswith("multipart/form-data"):
            head = f"Content-Type: {kind}\n\n".encode()
            form = {}
            for part in email.message_from_bytes(
                head + body, policy=email.policy.HTTP
            ).iter_parts():
                data = part.get_payload(decode=True)
                name = part.get_param("name", "", "content-disposition")
                form[str(name)] = data.decode("ascii") if isinstance(data, bytes) else ""
            return form
        if kind and "x-www-form-urlencoded" not in kind.lower():
            raise InputError(f"send a form with the fields q and mode, not {kind[:60]!r}")
        return dict(parse_qsl(body.decode("ascii"), max_num_fields=16))
    except ValueError as error:
        raise InputError(f"the form cannot be read: {error}") from None


def parse_query(text: str, most: int) -> tuple[list[str], list[str]]:
    """Names and sequences of a FASTA text; a bare sequence is called 101.

    Raises:
        InputError: none, too many, a name twice, or letters that are none.
    """
    text = text if text.lstrip().startswith(">") else f">101\n{text}"
    names, sequences = [], []
    for record in text.split(">")[1:]:
        head, _, body = record.partition("\n")
        sequence = "".join(body.split()).upper()
        if not _LETTERS.fullmatch(sequence):
            raise InputError("a sequence has letters A to Z only", item=head.strip()[:40])
        names.append((head.split() or [""])[0])
        sequences.append(sequence)
    if not names or len(names) > most or len(set(names)) < len(names):
        raise InputError(f"want 1 to {most} sequences, each with a name of its own")
    return names, sequences


def as_a3m(data: bytes) -> bytes:
    """A result as A3M, whatever program wrote it."""
    return data if data.startswith(b">") else search.to_a3m(search.read_any(data))


def blocks_of(names: Sequence[str], a3ms: Sequence[bytes]) -> bytes:
    """Alignments behind each other, each begun by its query's name and ended by a NUL."""
    blocks = (
        f">{name}\n".encode() + a3m.partition(b"\n")[2]
        for name, a3m in zip(names, a3ms, strict=True)
    )
    return b"".join(block.rstrip(b"\n") + b"\n\0" for block in blocks)
