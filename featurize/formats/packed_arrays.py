"""Arrays in other programs' files: `.npz` with objects in it, pickles of arrays.

Pickles can run any code when they are opened. Here only arrays and plain values are built;
an object of another program's class becomes an `Inert`, which has its values and no methods.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from evofeed.base.errors import InputError
from evofeed.featurize.config import InputCaps

TABLE_ERRORS: Final = (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError)
"""Exceptions of reading tables that are inconsistent or lack an item."""
_FOREIGN: Final = ("biotite", "protenix", "openfold3")
"""Packages whose objects become `Inert`: those in Protenix's entries and OpenFold3's caches."""
_ALLOWED: Final = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"),
    ("collections", "OrderedDict"),
    ("datetime", "date"),
    ("datetime", "datetime"),
}
"""Names that pickled arrays need."""


class Inert:
    """The values of an unpickled object of another program's class."""

    def __init__(self, *values: Any) -> None:
        self.values: tuple[Any, ...] = values

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
            state = {**(state[0] or {}), **state[1]}
        self.__dict__.update(state if isinstance(state, dict) else {"state": state})


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] in _FOREIGN:
            return Inert
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if (module, name) == ("_codecs", "encode"):  # how protocol 2 spells bytes
            return _latin1
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a file of arrays")


def _latin1(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not allowed")
    return text.encode("latin-1")


def unpickle(data: bytes, path: str) -> Any:
    """The value of a pickle of arrays and plain values.

    Raises:
        InputError: it is not a pickle, or it needs a class that is not allowed.
    """
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except Exception as error:  # a damaged pickle can raise anything
        raise InputError(f"not a pickle of arrays: {error!r}"[:300], path=path) from None


class Npz(Mapping[str, Any]):
    """The arrays of an `.npz` file, each read when it is accessed.

    Raises:
        InputError: it is not a zip file, or unpacks to more than the cap.
    """

    def __init__(self, data: bytes, path: str) -> None:
        self.path = path
        self._max_bytes = InputCaps().max_file_bytes
        try:
            self._archive = zipfile.ZipFile(io.BytesIO(data))
            self._members = {
                item.filename.removesuffix(".npy"): item for item in self._archive.infolist()
            }
        except (zipfile.BadZipFile, ValueError, OSError) as error:
            raise InputError(f"no readable npz: {error}", path=path) from None
        total = sum(item.file_size for item in self._members.values())
        if total > self._max_bytes:
            raise InputError(f"{total} bytes unpacked, {self._max_bytes} allowed", path=path)

    def __iter__(self) -> Any:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __getitem__(self, name: str) -> Any:
        """An array, or the value of an array of objects.

        Raises:
            InputError: the file has no array of this name, or it does not parse.
        """
        if name not in self._members:
            names = ", ".join(self._members) or "none"
            raise InputError(f"no array {name!r}, only {names}", path=self.path)
        try:
            with self._archive.open(self._members[name]) as file:
                data = file.read(self._max_bytes)
        except Exception as error:  # zlib and zipfile each have errors of their own
            raise InputError(f"{name} cannot be read: {error}", path=self.path) from None
        return _array(data, f"{self.path}: {name}" if self.path else name)


def _array(data: bytes, path: str) -> Any:
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        npy_format: Any = np.lib.format
        read_header = getattr(npy_format, f"read_array_header_{version[0]}_0")
        dtype = read_header(stream)[2]
        if not dtype.hasobject:
            return np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, AttributeError, OSError) as error:
        raise InputError(f"not an array: {error}", path=path) from None
    value = unpickle(data[stream.tell() :], path)
    return value.item() if isinstance(value, np.ndarray) and value.shape == () else value
