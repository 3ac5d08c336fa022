"""Child process: one trusted feature pickle -> npz, building nothing but arrays and texts.

    python -m evofeed.store.unpickle features.pkl out.npz

"Trusted" is the user's word; this is the second line of defence. The unpickler
knows the few names that numpy arrays need and refuses every other; memory and
CPU time are capped, so a bomb ends this process and not its parent.
"""

from __future__ import annotations

import gzip
import io
import lzma
import pickle
import resource
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

MEMORY: Final = 8 << 30
SECONDS: Final = 240
ALLOWED: Final = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"),
    ("collections", "OrderedDict"),
}


class ArrayUnpickler(pickle.Unpickler):
    """Unpickles numpy arrays, dicts and plain values; anything else is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """The few names an array needs."""
        if (module, name) in ALLOWED:
            return super().find_class(module, name)
        if (module, name) == ("_codecs", "encode"):  # how protocol 2 spells bytes
            return _latin1
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a feature file")


def _latin1(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not allowed")
    return text.encode("latin-1")


def load_features(data: bytes) -> dict[str, np.ndarray]:
    """The feature dict of a pickle, texts as byte strings.

    Raises:
        pickle.UnpicklingError: it holds anything but arrays and plain values.
    """
    features = ArrayUnpickler(io.BytesIO(data)).load()
    if not isinstance(features, dict):
        raise pickle.UnpicklingError(f"a feature file holds a dict, not {type(features).__name__}")
    arrays = {}
    for name, value in features.items():
        array = np.asarray(value)
        if array.dtype == object:
            array = np.array([_bytes(item) for item in array.reshape(-1).tolist()], dtype=np.bytes_)
        arrays[str(name)] = array
    return arrays


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | str):
        raise pickle.UnpicklingError(f"an object array of {type(value).__name__}")
    return value if isinstance(value, bytes) else value.encode()


def main(source: str, target: str) -> None:
    """Convert one file under limits."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(Path(source).suffix, open)
    with opener(source, "rb") as file:
        data = file.read(MEMORY // 2)
    np.savez(target, **load_features(data))  # type: ignore[arg-type]  # names are keywords


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2])
    except BaseException as error:  # whatever it is, the parent gets one line
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
