"""Opaque page cursors: a row number in a file that never changes, signed."""

from __future__ import annotations

import hashlib

from itsdangerous import BadData, Signer, URLSafeSerializer

from evofeed.service.problems import Problem


class CursorSigner:
    """Writes and reads cursors with one secret key, and makes the words of forms."""

    def __init__(self, key: bytes) -> None:
        options = {"digest_method": hashlib.sha256}
        self._cursors = URLSafeSerializer(key, salt="cursor", signer_kwargs=options)
        self._words = Signer(key, salt="word", digest_method=hashlib.sha256)

    def write(self, row: int, digest: str, query: str) -> str:
        """A cursor that continues at `row` of exactly this listing of a snapshot.

        It stays that snapshot if a ref moves on meanwhile; `query` is all else it depends on.
        """
        text = self._cursors.dumps([row, digest, _hash(query)])
        return text if isinstance(text, str) else text.decode()

    def read(self, cursor: str, query: str) -> tuple[int, str]:
        """The row and the snapshot a cursor continues at."""
        try:
            row, digest, asked = self._cursors.loads(cursor)
        except (BadData, UnicodeError):
            raise bad_cursor("the cursor was not made by this service") from None
        if asked != _hash(query):
            raise bad_cursor("the cursor belongs to another filter, dataset or set of columns")
        return int(row), str(digest)

    def word(self, text: str) -> str:
        """A word that nobody without the key can make from `text`."""
        return self._words.get_signature(text.encode("utf-8", "surrogatepass")).decode()


def _hash(query: str) -> str:
    return hashlib.sha256(query.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def bad_cursor(what: str) -> Problem:
    """The problem of a cursor that cannot go on."""
    return Problem(422, "bad_cursor", what, next="send `next` back unchanged, with the same query")
