"""Opening files within allowed folders only, even if a link leads out of them.

The target of a path may change between a check and its use; that of a descriptor cannot. So the
path is resolved once to a descriptor (`O_PATH`: nothing is read, no pipe blocks), the descriptor's
canonical path is checked, and the file is opened through the descriptor. This needs Linux.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

Limits = Sequence[Sequence[str]]
"""Groups of canonical folders: a file must be inside one folder of every group."""

_limits: Limits | None = None


@contextlib.contextmanager
def limited_to(limits: Limits | None) -> Iterator[None]:
    """Restricts `open_input` of this process to these folders within the block."""
    global _limits
    before, _limits = _limits, limits
    try:
        yield
    finally:
        _limits = before


def is_limited() -> bool:
    """True within a block of `limited_to`, for a user who may not open all that the process may."""
    return _limits is not None


def open_input(path: str | Path) -> BinaryIO:
    """An input file open for reading, within the folders of `limited_to` if that is active.

    Raises:
        OSError: as `open_within`.
    """
    return open(path, "rb", opener=_opener)


def _opener(path: str, flags: int) -> int:
    if _limits is None:
        return os.open(path, flags | os.O_NONBLOCK)  # a pipe does not block
    return open_within(path, _limits, flags)


def open_within(path: str | Path, limits: Limits, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a path's target; links are followed, but not out of the folders.

    Args:
        path: of an existing file or folder.

    Raises:
        OSError: it cannot be opened; EXDEV: it is outside of the folders.
    """
    number = os.open(path, os.O_PATH | os.O_CLOEXEC | flags & os.O_DIRECTORY)
    try:
        handle = f"/proc/self/fd/{number}"
        target = os.readlink(handle)  # noqa: PTH115 - takes a third of Path's time
        if not all(any(below(target, root) for root in group) for group in limits):
            raise OSError(errno.EXDEV, "it leads out of the allowed folders", str(path))
        return os.open(handle, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(number)


def below(path: str, root: str) -> bool:
    """True if a canonical path is `root` or inside it."""
    return path == root or path.startswith(f"{root.rstrip('/')}/")
