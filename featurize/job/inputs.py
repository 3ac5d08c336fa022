"""Whether an input is what it was: by size and time, and where those differ by content.

Reading everything to name it by its content would cost as much as the job. So a file is
named by its place, size and time when it was first read, and the sha256 of what was read is
kept with that. A file that was only copied or touched since, or that is elsewhere now with
the whole input, is read once more, found to be the same, and keeps its name, and so its unit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from evofeed.base.errors import InputError
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.reading import FileRef, file_ref, sha256, xxh3
from evofeed.featurize.inputs.roads.parts import read_part
from evofeed.featurize.inputs.sources import ChainSource


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

    def still(self, path: str) -> bool:
        """Whether the file has the same size and time now."""
        return _stat(path) == (self.nbytes, self.mtime_ns)


@dataclass(frozen=True, slots=True)
class KnownInputs:
    """What earlier jobs knew of the inputs of this one.

    Attributes:
        root: the folder this job's input is in; it may have been elsewhere before.
        stamps: inputs as they were when they were read, by `input_key`.
        former_roots: where the inputs of other jobs lay, newest first.
        check_content: read all that are known rather than believe size and time.
    """

    root: str = ""
    stamps: Mapping[str, Stamp] = field(default_factory=dict)
    former_roots: tuple[str, ...] = ()
    check_content: bool = False

    def place(self, path: str) -> str:
        """A path as seen from the root, if it is in it."""
        return "." if path == self.root else path.removeprefix(f"{self.root}/")

    def stamp(self, ref: FileRef, config: FeaturizeConfig) -> Stamp | None:
        """An input as it is now; None if it is not there."""
        here = self.stamps.get(input_key(ref))
        if here is None:
            for before in self._elsewhere(ref):
                now = stamp_of(ref, config, before, check_content=True)
                if now is not None and now.name == before.name:
                    return now
        return stamp_of(ref, config, here, self.check_content)

    def _elsewhere(self, ref: FileRef) -> Iterator[Stamp]:
        """The same place under other roots, as far as it is known."""
        place = self.place(ref.path)
        for root in self.former_roots if place != ref.path else ():
            known = self.stamps.get(input_key(ref._replace(path=f"{root}/{place}")))
            if known is not None:
                yield known


def inputs_of(source: ChainSource, config: FeaturizeConfig) -> Iterator[FileRef]:
    """Every input a chain's features are made of, template structures apart."""
    unread = {"other"}
    if source.template_mmcif_dir is None or not config.max_templates:
        unread |= {"hhr", "hmmsearch"}
    with contextlib.suppress(InputError):  # for the job to complain about
        yield from (ref for role, ref in source.alignment_files(config) if role not in unread)
    structure = source.structure_ref()
    if structure is not None:
        yield structure
    elif source.fasta is not None and not source.sequence:
        yield file_ref(source.fasta)


def input_key(ref: FileRef) -> str:
    """Where an input is."""
    span = f"{ref.offset} {ref.size}"
    if ref.part:  # of a whole file
        span = f"{quote(ref.part)} -"
    return f"{span} {ref.path}"


def path_of(key: str) -> str:
    """The file of an input, by its `input_key`, or of a template by its `template_key`."""
    return key.removeprefix("template ").split(" ", 2)[2]


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
    stat = _stat(ref.path)
    if stat is None:
        return None
    nbytes, mtime_ns = stat
    if known is not None and stat == (known.nbytes, known.mtime_ns) and not check_content:
        return known
    # The place distinguishes inputs that happen to have one size and time under two roots.
    name = f"{nbytes} {mtime_ns} {xxh3(os.fsencode(ref.path))[:16]}"
    if known is None or not known.sha256 or nbytes != known.nbytes:
        return Stamp(name, nbytes, mtime_ns)
    try:
        found = digest(read_part(ref, config.caps))
    except InputError:
        return Stamp(name, nbytes, mtime_ns)
    if found == known.sha256:
        return Stamp(known.name, nbytes, mtime_ns, found)
    return Stamp(f"{name} {found}", nbytes, mtime_ns, found)


def _stat(path: str) -> tuple[int, int] | None:
    try:
        stat = Path(path).stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns
