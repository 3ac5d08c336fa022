"""Bytes of one input: a file, a span or part of one, compressed or plain."""

from __future__ import annotations

import bz2
import gc
import hashlib
import importlib
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import xxhash

from evofeed.base.errors import InputError
from evofeed.base.within import open_input
from evofeed.featurize.config import InputCaps

PACKED: Final = (".gz", ".zst", ".xz", ".bz2")
"""Suffixes of compressed files, which are decompressed as they are read."""
_FREE_BYTES = 64 << 20
"""Below this no ratio marks a bomb: an alignment of one family compresses a hundredfold."""
_BOM = b"\xef\xbb\xbf"
"""Byte order mark, which editors on Windows put before UTF-8 text."""
_UNPACKERS: Final[dict[str, Callable[[], Any]]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".zst": lambda: importlib.import_module("zstandard").ZstdDecompressor().decompressobj(),
    ".xz": lzma.LZMADecompressor,
    ".bz2": bz2.BZ2Decompressor,
}
_BLOCK_BYTES = 2048
"""Compressed bytes at a time: 4 of zst's can decompress to 128 KiB."""


class FileRef(NamedTuple):
    """One input: a file, or a span of one. A tuple, as an index holds millions of them.

    Attributes:
        name: file name that gives its kind, e.g. `uniref90_hits.sto`.
        offset: its first byte in the file.
        size: its bytes; None is the rest of the file.
        part: selects one chain's rows of a file with those of several, in the form of
            `readers.parts`: such an input is read by `readers.parts.read_part`.
    """

    name: str
    path: str
    offset: int = 0
    size: int | None = None
    part: str = ""

    @property
    def plain_name(self) -> str:
        """The name without a compression suffix."""
        return plain(self.name)

    def nbytes(self) -> int:
        """Bytes on disk, compressed if it is; 0 if the file does not exist."""
        if self.size is not None:
            return self.size
        try:
            return Path(self.path).stat().st_size
        except OSError:
            return 0


def file_ref(path: str | Path) -> FileRef:
    """A whole file."""
    return FileRef(Path(path).name, str(path))


def plain(name: str) -> str:
    """A file name without a compression suffix."""
    lower = name.lower()
    return next((name[: -len(suffix)] for suffix in PACKED if lower.endswith(suffix)), name)


def read_bytes(ref: FileRef, caps: InputCaps | None = None) -> bytes:
    """The decompressed content of an input.

    Raises:
        InputError: missing, too large, a decompression bomb, or a damaged stream.
    """
    assert not ref.part, "a part is read by read_part"
    caps = caps or InputCaps()
    raw = _read_span(ref, caps)
    unpacker = _UNPACKERS.get(Path(ref.name).suffix.lower())
    data = raw if unpacker is None else _join_capped(ref, _blocks(unpacker, raw), len(raw), caps)
    return data.removeprefix(_BOM)


def read_head(ref: FileRef, nbytes: int) -> bytes:
    """At most the first `nbytes` of an input, decompressed; empty if it cannot be read.

    To recognize a format: the error of an unreadable file is raised where all of it is read.
    """
    try:
        with open_input(ref.path) as handle:
            _check_regular(handle, ref.path)
            handle.seek(ref.offset)
            raw = handle.read(nbytes if ref.size is None else min(nbytes, ref.size))
        if unpacker := _UNPACKERS.get(Path(ref.name).suffix.lower()):
            head = b""
            for block in _blocks(unpacker, raw, complete=False):
                head += block
                if len(head) >= nbytes:
                    break
            raw = head[:nbytes]
    except Exception:  # zlib, lzma and zstandard each have errors of their own
        return b""
    return raw.removeprefix(_BOM)


def sha256(data: bytes) -> str:
    """Hex digest that identifies this content."""
    return hashlib.sha256(data).hexdigest()


def xxh3(data: bytes) -> str:
    """Hex digest to detect changes: a tenth of sha256's time, but not cryptographic."""
    return xxhash.xxh3_128_hexdigest(data)


def is_text(name: str) -> bool:
    """True if a file's name is UTF-8; Linux allows others, which no record can store."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def entry_kind(entry: os.DirEntry[str]) -> str:
    """`dir` or `file`; empty for anything else, e.g. a dangling or circular link."""
    try:
        return "dir" if entry.is_dir() else "file" if entry.is_file() else ""
    except OSError:
        return ""


def files_below(root: str | Path) -> list[Path]:
    """Files of a folder and its subfolders, sorted; also folders that cannot be listed, so that
    reading them raises the reason."""
    paths: list[str] = []
    for folder, _, names in os.walk(root, onerror=lambda error: paths.append(error.filename)):
        paths.extend(f"{folder}/{name}" for name in names)
    return sorted(map(Path, paths))


def line_of(data: bytes, offset: int) -> int:
    """Line number, from 1, of a byte."""
    return data.count(b"\n", 0, offset) + 1


def _read_span(ref: FileRef, caps: InputCaps) -> bytes:
    try:
        nbytes = ref.nbytes() if ref.size is None else 0
        if message := caps.excess("max_file_bytes", nbytes, f"{nbytes} bytes"):
            raise InputError(message, path=ref.path)
        with open_input(ref.path) as handle:
            _check_regular(handle, ref.path)
            handle.seek(ref.offset)
            data = handle.read(-1 if ref.size is None else ref.size)
    except FileNotFoundError:
        raise InputError("no such file", path=ref.path) from None
    except (OSError, OverflowError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error  # str(OSError) repeats the path
        raise InputError(f"cannot be read: {reason}", path=ref.path) from None
    if ref.size is not None and len(data) != ref.size:
        raise InputError(
            f"{ref.name} should span bytes {ref.offset}-{ref.offset + ref.size}, but the file "
            "is shorter: index and db do not belong together",
            path=ref.path,
        )
    return data


def _check_regular(handle: BinaryIO, path: str) -> None:
    """Raises for a pipe, a socket or a device: reading it may never end."""
    if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
        raise InputError("not a regular file: fix or remove it", path=path)


def _join_capped(ref: FileRef, blocks: Iterator[bytes], packed: int, caps: InputCaps) -> bytes:
    """The blocks joined; raises as soon as their size exceeds the caps."""
    max_bytes = min(caps.max_file_bytes, max(_FREE_BYTES, caps.max_ratio * packed))
    content: list[bytes] = []
    total = 0
    try:
        for block in blocks:
            total += len(block)
            if total > max_bytes:
                raise InputError(
                    f"unpacks to more than {max_bytes} bytes from {packed}: a decompression "
                    "bomb, or InputCaps.max_ratio is too low",
                    path=ref.path,
                )
            content.append(block)
    except InputError:
        raise
    except Exception as error:  # zlib, gzip and zstandard each have errors of their own
        raise InputError(f"damaged compressed stream: {error}", path=ref.path) from None
    return b"".join(content)


def _blocks(unpacker: Callable[[], Any], raw: bytes, *, complete: bool = True) -> Iterator[bytes]:
    """Decompressed blocks, stream after stream; `complete`: the last stream must end."""
    position = 0
    while position < len(raw) and raw[position]:  # gzip may pad a file with zeros
        stream = unpacker()
        while not stream.eof:
            block = raw[position : position + _BLOCK_BYTES]
            if not block and not complete:
                return
            if not block:
                raise EOFError("the last stream ends too early")
            yield stream.decompress(block)
            position += len(block) - len(stream.unused_data)


@contextmanager
def paused_gc() -> Iterator[None]:
    """Pauses garbage collection: large indices, free of cycles, load in half the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
