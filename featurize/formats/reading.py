"""Bytes of one input, wherever they are: a file, a span or part of one, packed or plain."""

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
"""Suffixes of files that are unpacked as they are read."""
_FREE_BYTES = 64 << 20
"""Below this a ratio proves nothing: an alignment of one family packs a hundredfold."""
_BOM = b"\xef\xbb\xbf"
"""What editors on Windows put before UTF-8 text."""
_UNPACKERS: Final[dict[str, Callable[[], Any]]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".zst": lambda: importlib.import_module("zstandard").ZstdDecompressor().decompressobj(),
    ".xz": lzma.LZMADecompressor,
    ".bz2": bz2.BZ2Decompressor,
}
_BITE = 2048
"""Packed bytes at a time: 4 of zst's can unfold to 128 KiB."""


class FileRef(NamedTuple):
    """One input: a file, or a span of one. A tuple, for an index holds millions of them.

    Attributes:
        name: file name that says its kind, e.g. `uniref90_hits.sto`.
        offset: where it starts in the file.
        size: its bytes; None is the rest of the file.
        part: which chain's rows of a file that holds those of several, as `roads` names it:
            such an input is read by `roads.parts.read_part`.
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
        """Bytes it takes where it is (compressed if it is); 0 if it is not there."""
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
        InputError: not there, too large, a decompression bomb, or a damaged stream.
    """
    assert not ref.part, "read_part knows which rows of a file a part is"
    caps = caps or InputCaps()
    raw = _read_span(ref, caps)
    unpacker = _UNPACKERS.get(Path(ref.name).suffix.lower())
    data = raw if unpacker is None else _gather(ref, _pieces(unpacker, raw), len(raw), caps)
    return data.removeprefix(_BOM)


def read_head(ref: FileRef, nbytes: int) -> bytes:
    """About the first bytes of an input, decompressed; none if it cannot be read.

    For telling what a file is: whoever reads all of it says what is wrong with it.
    """
    try:
        with open_input(ref.path) as handle:
            _check_regular(handle, ref.path)
            handle.seek(ref.offset)
            raw = handle.read(nbytes if ref.size is None else min(nbytes, ref.size))
        if unpacker := _UNPACKERS.get(Path(ref.name).suffix.lower()):
            found = b""
            for piece in _pieces(unpacker, raw, whole=False):
                found += piece
                if len(found) >= nbytes:
                    break
            raw = found[:nbytes]
    except Exception:  # zlib, lzma and zstandard each have errors of their own
        return b""
    return raw.removeprefix(_BOM)


def sha256(data: bytes) -> str:
    """Hex digest that names this content."""
    return hashlib.sha256(data).hexdigest()


def xxh3(data: bytes) -> str:
    """Hex digest that shows whether content changed: a tenth of sha256's time, no proof."""
    return xxhash.xxh3_128_hexdigest(data)


def is_text(name: str) -> bool:
    """Whether a file's name is UTF-8; Linux allows others, and nothing of ours can keep them."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def entry_kind(entry: os.DirEntry[str]) -> str:
    """`dir`, `file`, or nothing for what is neither: a link to nothing, or round in a circle."""
    try:
        return "dir" if entry.is_dir() else "file" if entry.is_file() else ""
    except OSError:
        return ""


def files_below(root: str | Path) -> list[Path]:
    """Files of a folder and of all in it, sorted; folders that cannot be listed, for their reader
    to say why."""
    found: list[str] = []
    for folder, _, names in os.walk(root, onerror=lambda error: found.append(error.filename)):
        found.extend(f"{folder}/{name}" for name in names)
    return sorted(map(Path, found))


def line_of(data: bytes, offset: int) -> int:
    """Line number, from 1, of a byte."""
    return data.count(b"\n", 0, offset) + 1


def _read_span(ref: FileRef, caps: InputCaps) -> bytes:
    try:
        nbytes = ref.nbytes() if ref.size is None else 0
        if why := caps.excess("max_file_bytes", nbytes, f"{nbytes} bytes"):
            raise InputError(why, path=ref.path)
        with open_input(ref.path) as handle:
            _check_regular(handle, ref.path)
            handle.seek(ref.offset)
            data = handle.read(-1 if ref.size is None else ref.size)
    except FileNotFoundError:
        raise InputError("no such file", path=ref.path) from None
    except (OSError, OverflowError, ValueError) as error:
        what = getattr(error, "strerror", None) or error  # an OSError would tell the path again
        raise InputError(f"cannot be read: {what}", path=ref.path) from None
    if ref.size is not None and len(data) != ref.size:
        raise InputError(
            f"{ref.name} should span bytes {ref.offset}-{ref.offset + ref.size}, but the file "
            "ends before: index and db do not belong together",
            path=ref.path,
        )
    return data


def _check_regular(handle: BinaryIO, path: str) -> None:
    """Raise for a pipe, a socket or a device: reading it may never end."""
    if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
        raise InputError("no regular file: fix or remove it", path=path)


def _gather(ref: FileRef, pieces: Iterator[bytes], packed: int, caps: InputCaps) -> bytes:
    """The pieces joined, given up as soon as they are too many."""
    ceiling = min(caps.max_file_bytes, max(_FREE_BYTES, caps.max_ratio * packed))
    kept: list[bytes] = []
    total = 0
    try:
        for piece in pieces:
            total += len(piece)
            if total > ceiling:
                raise InputError(
                    f"unpacks to more than {ceiling} bytes from {packed}: a decompression "
                    "bomb, or InputCaps.max_ratio is too low",
                    path=ref.path,
                )
            kept.append(piece)
    except InputError:
        raise
    except Exception as error:  # zlib, gzip and zstandard each have errors of their own
        raise InputError(f"damaged compressed stream: {error}", path=ref.path) from None
    return b"".join(kept)


def _pieces(unpacker: Callable[[], Any], raw: bytes, *, whole: bool = True) -> Iterator[bytes]:
    """What packed bytes unfold to, stream after stream; `whole`: the last one must end."""
    position = 0
    while position < len(raw) and raw[position]:  # gzip may pad a file with zeros
        stream = unpacker()
        while not stream.eof:
            bite = raw[position : position + _BITE]
            if not bite and not whole:
                return
            if not bite:
                raise EOFError("the last stream ends too early")
            yield stream.decompress(bite)
            position += len(bite) - len(stream.unused_data)


@contextmanager
def paused_gc() -> Iterator[None]:
    """No collection inside. For indices of whole data sets, which hold no cycles: half the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
