"""Refs as they are in the store, noticed in the history; and what the database need not be asked
again, because nobody has written to it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from evofeed.service.database.database import Database
from evofeed.service.refs.history import note_ref
from evofeed.service.snapshots.catalog import Catalog
from evofeed.service.work import require_thread
from evofeed.store.inner import Ref

_MAX: Final = 10_000


class Noticed:
    """Reads refs from their stores; a move made past the service is entered when it is seen.

    Args:
        catalog: the datasets.
        database: their history.
    """

    def __init__(self, catalog: Catalog, database: Database) -> None:
        self._catalog, self._database = catalog, database
        # What the history's last entry was, and the state of the database in which it was.
        self._last: OrderedDict[tuple[str, str], tuple[str, Hashable]] = OrderedDict()

    def ref(self, name: str, ref: str) -> Ref:
        """Where a ref points: its store is asked each time, the database if it was written to.

        Raises:
            Problem: 404, no such dataset.
            DatasetMissing: no such ref.
        """
        state = self._database.changes.known()
        if state is None:
            require_thread()
            state = self._database.changes.state()
        digest, then = self._last.get((name, ref), ("", None))
        view = self._catalog.view(name)
        if state is not None and state == then:
            found = view.resident_ref(ref)
            if found is None:
                require_thread()
                found = view.ref(ref)
            if found.digest == digest:
                return found
        require_thread()
        found = note_ref(self._database, self._catalog.dataset(name).id, view, ref)
        if state is not None:
            self._last[name, ref] = found.digest, state
            while len(self._last) > _MAX:
                self._last.popitem(last=False)
        return found
