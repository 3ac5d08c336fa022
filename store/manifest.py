"""The manifest: one small canonical JSON file that *is* a snapshot.

Its sha256 is the snapshot's digest. It holds no time and no host, so the same
chains, configuration and parent give the same digest on every machine.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from evofeed.base.errors import ShardCorrupt
from evofeed.base.files import parse_json
from evofeed.store.layout import ASSEMBLIES_VERSION, CHAINS_VERSION, ENTRIES_VERSION, check_version

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Valid names of refs, datasets and chains: safe in any path or URL."""
DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, order=True)
class ShardEntry:
    """A written shard, as a commit and the manifest need it: small and JSON-ready."""

    name: str
    """File name below `shards/`: the sha256 and `.arrow`."""
    sha256: str
    nbytes: int
    chains: int
    """Number of chains in it."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ShardEntry:
        """The entry back from `to_dict`."""
        entry = cls(**{k: values[k] for k in ("name", "sha256", "nbytes", "chains")})
        named = DIGEST.fullmatch(entry.sha256) and entry.name == f"{entry.sha256}.arrow"
        if not named or min(int(entry.nbytes), int(entry.chains)) < 0:
            raise ValueError(f"not a shard entry: {values!r}")
        return entry


class Part(NamedTuple):
    """Complexes, or entries, of a snapshot to be written."""

    files: Mapping[str, bytes]
    """Their tables as files, by name; empty if there are none."""
    num: int
    shards: tuple[ShardEntry, ...] = ()
    """Shards of their records."""

    def to_dict(self) -> dict[str, Any] | None:
        """Their value in the manifest; None if there are none."""
        files = {
            name: {"sha256": hashlib.sha256(data).hexdigest(), "nbytes": len(data)}
            for name, data in self.files.items()
        }
        return {"num": self.num, "files": files} if files else None


NO_PART: Final = Part({}, 0)
"""Part of a snapshot without complexes, or without entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Contents of a snapshot."""

    shards: tuple[ShardEntry, ...]
    """Sorted by name."""
    index_sha256: str
    index_nbytes: int
    num_chains: int
    parent: str | None = None
    """Digest of the snapshot this one was made from."""
    config: dict[str, Any] = field(default_factory=dict)
    """How the chains were made; free form."""
    dropped: tuple[dict[str, Any], ...] = ()
    """Inputs that gave no chain, each with its reason."""
    assemblies: dict[str, Any] | None = None
    """Complexes: their number (`num`), and sha256 and bytes of the `files` with their tables;
    None if there are none."""
    entries: dict[str, Any] | None = None
    """Entries, in the same way."""

    @property
    def version(self) -> tuple[int, int]:
        """Lowest format version that has its contents."""
        if self.entries:
            return ENTRIES_VERSION
        return ASSEMBLIES_VERSION if self.assemblies else CHAINS_VERSION

    @property
    def more_files(self) -> tuple[str, ...]:
        """Names of the files in the snapshot's folder besides manifest and index."""
        return tuple(sorted(self.file_table))

    @property
    def file_table(self) -> dict[str, dict[str, Any]]:
        """sha256 and bytes of those files, by name."""
        parts = (part["files"] for part in (self.assemblies, self.entries) if part)
        return {name: file for part in parts for name, file in part.items()}

    def to_bytes(self) -> bytes:
        """Canonical bytes: sorted keys, no spaces, ASCII."""
        values = {
            "format": "evofeed-dataset",
            "version": list(self.version),
            "shards": [shard.to_dict() for shard in self.shards],
            "index": {"sha256": self.index_sha256, "nbytes": self.index_nbytes},
            "num_chains": self.num_chains,
            "parent": self.parent,
            "config": self.config,
            "dropped": list(self.dropped),
        }
        if self.assemblies:
            values["assemblies"] = self.assemblies
        if self.entries:
            values["entries"] = self.entries
        return canonical_json(values)

    @property
    def digest(self) -> str:
        """The snapshot's name: sha256 of the canonical bytes, in hex."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def from_bytes(cls, data: bytes, digest: str, path: str) -> Manifest:
        """The manifest, its digest checked.

        Raises:
            ShardCorrupt: the bytes are not those of `digest`, or not a manifest.
            SchemaMismatch: another major version.
        """
        actual = hashlib.sha256(data).hexdigest()
        if actual != digest:
            problem = f"manifest has sha256 {actual[:12]}, not {digest[:12]}"
            raise ShardCorrupt(problem + REPAIR, path=path)
        try:
            values = parse_json(data)
            check_version(values["version"], path)
            return cls(
                shards=tuple(ShardEntry.from_dict(shard) for shard in values["shards"]),
                index_sha256=str(values["index"]["sha256"]),
                index_nbytes=int(values["index"]["nbytes"]),
                num_chains=int(values["num_chains"]),
                parent=values["parent"],
                config=dict(values["config"]),
                dropped=tuple(values["dropped"]),
                assemblies=_checked(values.get("assemblies")),
                entries=_checked(values.get("entries")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ShardCorrupt(f"not a manifest: {error!r}", path=path) from None


def _checked(part: Any) -> dict[str, Any] | None:
    if part is None:
        return None
    int(part["num"])
    for name, file in part["files"].items():
        if not NAME.fullmatch(name) or not DIGEST.fullmatch(file["sha256"]):
            raise ValueError(f"not a file of a snapshot: {name!r}")
    return dict(part)


REPAIR = ": copy the snapshot from a backup, or run the `evofeed featurize` that made it again"


def canonical_json(values: Any) -> bytes:
    """JSON bytes, the same for equal values: sorted keys, no spaces, ASCII."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def check_name(name: str, kind: str) -> str:
    """The name, if it is safe in any path or URL.

    Raises:
        ValueError: it is not.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"{kind} {name!r}: use letters, digits, '.', '_', '-', at most 128")
    return name
