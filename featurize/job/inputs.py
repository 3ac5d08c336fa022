"""Whether an input is what it was: by size and time, and where those differ by content.

Reading everything to name it by its content would cost as much as the job. So a file is
named by its size and time when it was first read, and the sha256 of what was read is kept
with that. A file that was only copied or touched since is read once more, found to be the
same, and keeps its name, and so its unit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from evofeed.errors import InputError
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.reading import FileRef, file_ref, read_bytes, sha256
from evofeed.featurize.sources import ChainSource


@dataclass(frozen=True, slots=True)
class Stamp:
    """An input as it was seen: what names it, its file's size and time, and its content if known.

    Attributes:
        name: stays as long as the content does.
        nbytes: of the file that holds it.
        mtime_ns: of that file.
        sha256: of the input, unpacked; '' before it was read. Of a template file, which is
            read again and again, its xxh3.
    """

    name: str
    nbytes: int
    mtime_ns: int
    sha256: str = ""

    def still(self, ref: FileRef) -> bool:
        """Whether the file has the same size and time now."""
        return _stat(ref) == (self.nbytes, self.mtime_ns)


def inputs_of(source: ChainSource, config: FeaturizeConfig) -> Iterator[FileRef]:
    """Every input a chain's features are made of, template structures apart."""
    with contextlib.suppress(InputError):  # for the job to complain about
        yield from (ref for role, ref in source.alignment_files(config) if role != "other")
    structure = source.structure_ref()
    if structure is not None:
        yield structure
    if source.fasta is not None:
        yield file_ref(source.fasta)


def input_key(ref: FileRef) -> str:
    """Where an input lies."""
    return f"{ref.path} {ref.offset} {ref.size}"


def stamp_of(
    ref: FileRef,
    config: FeaturizeConfig,
    known: Stamp | None,
    check_content: bool,
    digest: Callable[[bytes], str] = sha256,
) -> Stamp | None:
    """An input as it is now; None if it is not there.

    Args:
        ref: the input.
        config: with the caps for reading it.
        known: how it was when it was last read.
        check_content: read it even if size and time are as they were.
        digest: what `known` was named by.
    """
    stat = _stat(ref)
    if stat is None:
        return None
    nbytes, mtime_ns = stat
    name = f"{nbytes} {mtime_ns}"
    if known is None or not known.sha256:
        return Stamp(name, nbytes, mtime_ns)
    if stat == (known.nbytes, known.mtime_ns) and not check_content:
        return known
    if nbytes != known.nbytes:
        return Stamp(name, nbytes, mtime_ns)
    try:
        found = digest(read_bytes(ref, config.caps))
    except InputError:
        return Stamp(name, nbytes, mtime_ns)
    if found == known.sha256:
        return Stamp(known.name, nbytes, mtime_ns, found)
    return Stamp(f"{name} {found}", nbytes, mtime_ns)


def _stat(ref: FileRef) -> tuple[int, int] | None:
    try:
        stat = Path(ref.path).stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns
