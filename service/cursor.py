"""Opaque page cursors: a row number in a file that never changes, signed."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct

from evofeed.service.problems import Problem

_BODY = struct.Struct(">Q32s16s")  # next row, snapshot digest, hash of the query
_MAC = 16


class CursorSigner:
    """Writes and reads cursors with one secret key, and makes the words of forms."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def write(self, row: int, digest: str, query: str) -> str:
        """A cursor that continues at `row` of exactly this listing.

        Args:
            row: next row of the index to look at.
            digest: the snapshot; it stays this one even if a ref moves on meanwhile.
            query: everything else the listing depends on, as canonical text.
        """
        body = _BODY.pack(row, bytes.fromhex(digest), _hash(query))
        return base64.urlsafe_b64encode(body + self._mac(body)).decode().rstrip("=")

    def read(self, cursor: str, query: str) -> tuple[int, str]:
        """The row and the snapshot a cursor continues at.

        Raises:
            Problem: 422, the cursor was altered, or belongs to another query.
        """
        try:
            raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        except (binascii.Error, ValueError):
            raw = b""
        body, mac = raw[: _BODY.size], raw[_BODY.size :]
        if len(raw) != _BODY.size + _MAC or not hmac.compare_digest(mac, self._mac(body)):
            raise bad_cursor("the cursor was not made by this service")
        row, digest, wanted = _BODY.unpack(body)
        if wanted != _hash(query):
            raise bad_cursor("the cursor belongs to another filter, dataset or set of columns")
        return int(row), digest.hex()

    def word(self, text: str) -> str:
        """A word that nobody without the key can make from `text`."""
        body = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()  # no cursor's length
        return base64.urlsafe_b64encode(self._mac(body)).decode().rstrip("=")

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")[:_MAC]


def _hash(query: str) -> bytes:
    return hashlib.sha256(query.encode("utf-8", "surrogatepass")).digest()[:16]


def bad_cursor(what: str) -> Problem:
    """The problem of a cursor that cannot go on."""
    return Problem(422, "bad_cursor", what, next="send `next` back unchanged, with the same query")
