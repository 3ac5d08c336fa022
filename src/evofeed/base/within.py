"""Files opened within folders: a handle is asked where it is, so no link leads out of them.

What a path leads to may change between a check and a use; what is open stays what it is. So a
file is looked up first (`O_PATH`: nothing is read, no pipe waits), asked where it is, and only
then opened, by that handle and not by its path again. Linux alone can do that.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

Limits = Sequence[Sequence[str]]
"""Groups of canonical folders: what is opened lies below one folder of every group."""

_limits: Limits | None = None


@contextlib.contextmanager
def limited_to(limits: Limits | None) -> Iterator[None]:
    """Within it, `open_input` of this process opens nothing outside of these folders."""
    global _limits
    before, _limits = _limits, limits
    try:
        yield
    finally:
        _limits = before


def is_limited() -> bool:
    """Whether this process works for somebody who may not open everything that it may."""
    return _limits is not None


def open_input(path: str | Path) -> BinaryIO:
    """An input to read, wherever it is, or within what `limited_to` says.

    Raises:
        OSError: as `open_within`.
    """
    return open(path, "rb", opener=_opener)


def _opener(path: str, flags: int) -> int:
    if _limits is None:
        return os.open(path, flags | os.O_NONBLOCK)  # a pipe's end need not wait for the other
    return open_within(path, _limits, flags)


def open_within(path: str | Path, limits: Limits, flags: int = os.O_RDONLY) -> int:
    """A descriptor of what a path leads to; links are followed, but not out of the folders.

    Args:
        path: of something that exists; nothing is made.

    Raises:
        OSError: it cannot be opened; EXDEV, it is outside of the folders.
    """
    number = os.open(path, os.O_PATH | os.O_CLOEXEC | flags & os.O_DIRECTORY)
    try:
        handle = f"/proc/self/fd/{number}"
        place = os.readlink(handle)  # noqa: PTH115 - a third of its time
        if not all(any(below(place, root) for root in group) for group in limits):
            raise OSError(errno.EXDEV, "it leads out of the folders that are open", str(path))
        return os.open(handle, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(number)


def below(place: str, root: str) -> bool:
    """True if a canonical place is another one or is inside it."""
    return place == root or place.startswith(f"{root.rstrip('/')}/")
