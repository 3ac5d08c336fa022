"""When snapshots came to be, as far as anybody knows: no manifest holds a time."""

from __future__ import annotations

from sqlalchemy import func, select

from evofeed.service.database.database import Database
from evofeed.service.database.tables import RefMove, SnapshotRow
from evofeed.service.snapshots.snapshot import StoreView


def snapshots_of(database: Database, dataset_id: int, view: StoreView) -> list[tuple[str, float]]:
    """Digests of a dataset's snapshots and when each was written (Unix time), newest first.

    That is when the service saw it first: the time of its manifest's file or of a ref's move
    to it, whichever was earlier. A copy, a restore or a job that writes it again changes
    nothing of it.
    """
    there = dict(view.digests())
    known = select(SnapshotRow.digest, SnapshotRow.written_at)
    known = known.where(SnapshotRow.dataset_id == dataset_id)
    with database.read() as session:
        times = {row[0]: float(row[1]) for row in session.execute(known)}
    if new := there.keys() - times.keys():
        times |= _entered(database, dataset_id, {digest: there[digest] for digest in new})
    return sorted(((d, times[d]) for d in there), key=lambda pair: (-pair[1], pair[0]))


def _entered(database: Database, dataset_id: int, new: dict[str, float]) -> dict[str, float]:
    moves = select(RefMove.digest, func.min(RefMove.moved_at))
    moves = moves.where(RefMove.dataset_id == dataset_id, RefMove.digest.in_(new))
    with database.write() as session:
        database.alone(session, "snapshots")  # two readers may see the same for the first time
        moved = {row[0]: float(row[1]) for row in session.execute(moves.group_by(RefMove.digest))}
        times = {digest: min(at, moved.get(digest, at)) for digest, at in new.items()}
        for digest, at in times.items():
            row = session.get(SnapshotRow, (dataset_id, digest))
            if row is None:
                session.add(SnapshotRow(dataset_id=dataset_id, digest=digest, written_at=at))
            else:
                times[digest] = row.written_at
    return times
