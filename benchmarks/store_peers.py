"""The same arrays in other people's formats: write one chain, read a crop of one.

A peer stores the six arrays of a crop, uncropped (`RAW_ARRAYS`); evofeed's own
dataset holds the whole record, which is more. Peers crop with numpy, as their
users do.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from evofeed.protein.chain_record import ChainRecord

Arrays = Mapping[str, np.ndarray]
Reader = Callable[[int], Arrays]
RAW_ARRAYS = (
    "msa",
    "deletion_matrix",
    "template_all_atom_positions",
    "template_all_atom_mask",
    "all_atom_positions",
    "all_atom_mask",
)


def raw_arrays(record: ChainRecord) -> dict[str, np.ndarray]:
    """What every peer stores of a chain; deletions dense, u8."""
    arrays = {name: getattr(record, name) for name in RAW_ARRAYS if name != "deletion_matrix"}
    return arrays | {"deletion_matrix": record.deletion_matrix().astype(np.uint8)}


def crop_plainly(arrays: Arrays, out: Arrays, start: int, stop: int, rows: np.ndarray) -> None:
    """Crop with numpy into the same buffers as ours."""
    for name, target in out.items():
        if name in ("msa", "deletion_matrix"):
            np.take(arrays[name][:, start:stop], rows, axis=0, out=target, mode="clip")
        elif name.startswith("template"):
            target[...] = arrays[name][:, start:stop]
        else:
            target[...] = arrays[name][start:stop]


def arrow_file(codec: str | None) -> tuple[Callable[..., None], Callable[[Path], Reader]]:
    """Arrow IPC, one record batch a chain, memory-mapped; `codec` is IPC compression."""

    def write(path: Path, chains: Any) -> None:
        schema = pa.schema([(name, pa.large_binary()) for name in RAW_ARRAYS])
        schema = schema.append(pa.field("shapes", pa.list_(pa.int64())))
        options = pa.ipc.IpcWriteOptions(compression=codec)
        with pa.ipc.new_file(str(path), schema, options=options) as writer:
            for arrays in chains:
                cells = [pa.array([arrays[n].tobytes()], pa.large_binary()) for n in RAW_ARRAYS]
                sizes = [*arrays["msa"].shape, len(arrays["template_all_atom_mask"])]
                writer.write_batch(pa.record_batch([*cells, pa.array([sizes])], schema=schema))

    def read(path: Path) -> Reader:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))

        def chain(number: int) -> Arrays:
            batch = reader.get_batch(number)
            N, L, T = batch.column(6)[0].as_py()
            shapes = {
                "msa": (N, L),
                "deletion_matrix": (N, L),
                "template_all_atom_positions": (T, L, 37, 3),
                "template_all_atom_mask": (T, L, 37),
                "all_atom_positions": (L, 37, 3),
                "all_atom_mask": (L, 37),
            }
            return {
                name: np.frombuffer(
                    batch.column(i).buffers()[2],
                    np.float32 if name.endswith("positions") else np.uint8,
                    int(np.prod(shapes[name])),
                ).reshape(shapes[name])
                for i, name in enumerate(RAW_ARRAYS)
            }

        return chain

    return write, read


def mosaic() -> tuple[Callable[..., None], Callable[[Path], Reader]]:
    """MosaicML MDS, uncompressed, its own array encoding, by random access as a map."""
    stand_in_for_torchvision()
    from streaming import MDSWriter, StreamingDataset

    kinds = {name: "float32" if name.endswith("positions") else "uint8" for name in RAW_ARRAYS}
    columns = {name: f"ndarray:{kind}" for name, kind in kinds.items()}

    def write(path: Path, chains: Any) -> None:
        with MDSWriter(out=str(path), columns=columns) as writer:
            for arrays in chains:
                writer.write(dict(arrays))

    def read(path: Path) -> Reader:
        dataset = StreamingDataset(local=str(path), batch_size=1, shuffle=False)
        return lambda number: dataset[number]

    return write, read


def stand_in_for_torchvision() -> None:
    """`streaming` imports two names of torchvision for its image sets, which we do not touch."""
    names = ("torchvision", "torchvision.datasets", "torchvision.transforms")
    for name in (*names, "torchvision.transforms.functional"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = module
    sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]
    sys.modules[names[-1] + ".functional"].to_tensor = None  # type: ignore[attr-defined]


def lance() -> tuple[Callable[..., None], Callable[[Path], Reader]]:
    """Lance, a row each, `take` of one."""
    import lance as library

    schema = pa.schema([(name, pa.large_binary()) for name in RAW_ARRAYS])
    schema = schema.append(pa.field("sizes", pa.list_(pa.int64())))

    def batches(chains: Any) -> Iterator[pa.RecordBatch]:
        for arrays in chains:
            cells = [pa.array([arrays[n].tobytes()], pa.large_binary()) for n in RAW_ARRAYS]
            sizes = [*arrays["msa"].shape, len(arrays["template_all_atom_mask"])]
            yield pa.record_batch([*cells, pa.array([sizes])], schema=schema)

    def write(path: Path, chains: Any) -> None:
        reader = pa.RecordBatchReader.from_batches(schema, batches(chains))
        library.write_dataset(reader, str(path))

    def read(path: Path) -> Reader:
        dataset = library.dataset(str(path))

        def chain(number: int) -> Arrays:
            table = dataset.take([number])
            N, L, T = table["sizes"][0].as_py()
            arrays = {}
            for name in RAW_ARRAYS:
                kind = np.float32 if name.endswith("positions") else np.uint8
                tail = (37, 3) if name.endswith("positions") else (37,)
                rows = name in ("msa", "deletion_matrix")
                lead = (N, L) if rows else (T, L) if name.startswith("template") else (L,)
                flat = np.frombuffer(table[name].chunk(0).buffers()[2], kind)
                arrays[name] = flat.reshape(lead if rows else lead + tail)
            return arrays

        return chain

    return write, read


PEERS: dict[str, Callable[[], tuple[Callable[..., None], Callable[[Path], Reader]]]] = {
    "Arrow IPC raw": lambda: arrow_file(None),
    "Arrow IPC lz4": lambda: arrow_file("lz4"),
    "Arrow IPC zstd": lambda: arrow_file("zstd"),
    "MosaicML MDS": mosaic,  # by `dataset[i]`, as a shuffled trainer reads it; in order is faster
    "Lance": lance,
}
