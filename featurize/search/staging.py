"""A database copied to a node's own disk, once, and known by its digest there."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import shutil
from pathlib import Path

from evofeed.base.errors import JobError
from evofeed.featurize.search.config import Database
from evofeed.featurize.search.digests import database_digest, database_files


def staged(database: Database, digest: str, folder: str) -> Database:
    """The database in `folder/<digest>/`, copied there if nobody has before.

    Workers of a node wait for the one that copies. A copy that was cut short has no name
    and is begun again; one with a name was read in full and has the digest.

    Args:
        database: where it is for all nodes.
        digest: what it was when the search began.
        folder: on this node's disk.

    Raises:
        JobError: it is another database now, or there is no room for it.
        InputError: it cannot be read.
    """
    home, aside = Path(folder) / digest, Path(folder) / f"{digest}.aside"
    there = _moved(database, home)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with (Path(folder) / f"{digest}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # given up with the process, however it ends
            if not home.is_dir():
                shutil.rmtree(aside, ignore_errors=True)
                aside.mkdir()
                _copy(database, aside)
                found = database_digest(_moved(database, aside))
                if found != digest:
                    shutil.rmtree(aside, ignore_errors=True)
                    raise JobError(
                        "this database is not the one the search began with (by the digest of "
                        "its copy): run the search again to search the new one",
                        path=database.path,
                    )
                aside.rename(home)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        shutil.rmtree(aside, ignore_errors=True)
        raise _no_room(database, folder) from None
    return there


def _moved(database: Database, to: Path) -> Database:
    path, *more = (str(to / Path(path).name) for path in database.paths)
    return dataclasses.replace(database, path=path, more=tuple(more))


def _copy(database: Database, to: Path) -> None:
    files = database_files(database)
    needed = sum(path.stat().st_size for path in files)
    if needed > shutil.disk_usage(to).free:
        shutil.rmtree(to, ignore_errors=True)
        raise _no_room(database, str(to.parent))
    for path in files:
        shutil.copyfile(path, to / path.name)


def _no_room(database: Database, folder: str) -> JobError:
    return JobError(
        f"no room in {folder} for a copy of it: free some, name another folder with --stage, or "
        "search it where it is",
        path=database.path,
    )
