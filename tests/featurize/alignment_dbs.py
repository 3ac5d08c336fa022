"""OpenFold's alignment_db as its script writes one, for tests to read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_alignment_db(
    chain_dirs: Iterable[str | os.PathLike[str]],
    out_dir: str | os.PathLike[str],
    *,
    name: str = "alignment_db",
    shards: int = 1,
) -> str:
    """Glue chain folders into an alignment_db, byte for byte as OpenFold's script does.

    Folders are taken in the order given, each `shards`-th into the same db, their
    files in order of name.

    Returns:
        Path of the index.
    """
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    folders = [Path(folder) for folder in chain_dirs]
    index: dict[str, dict[str, Any]] = {}
    for shard in range(shards):
        db = f"{name}_{shard}.db"
        offset = 0
        with (out / db).open("wb") as handle:
            for folder in folders[shard::shards]:
                entry, _, chain = folder.name.partition("_")
                files = []
                for file in sorted(p for p in folder.iterdir() if p.is_file()):
                    data = file.read_bytes()
                    handle.write(data)
                    files.append([file.name, offset, len(data)])
                    offset += len(data)
                index[f"{entry.lower()}_{chain}"] = {"db": db, "files": files}
    path = out / f"{name}.index"
    path.write_text(json.dumps(index, indent=4), encoding="utf-8")
    return str(path)
