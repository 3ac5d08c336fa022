"""What names an input: its place, its size and its time.

Reading everything to name it by its content would cost as much as the job. So a file that was
only touched, copied or moved since is another one, and its units are done again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from evofeed.base.errors import InputError
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.reading import FileRef, file_ref
from evofeed.featurize.inputs.sources import ChainSource


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
    """The file of an input, by its `input_key`."""
    return key.split(" ", 2)[2]


def stamp_of(path: str | Path) -> str:
    """Size and time of a file as it is now; '' if it is not there."""
    try:
        stat = Path(path).stat()
    except OSError:
        return ""
    return f"{stat.st_size} {stat.st_mtime_ns}"
