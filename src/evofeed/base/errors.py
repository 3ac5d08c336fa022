"""Exception classes of evofeed.

They mean that *data or the environment* is wrong, and say what to do next; a wrong
*call* raises `ValueError` or `TypeError`. All of them can be pickled, because
they cross process and Ray boundaries.
"""

from __future__ import annotations

from typing import Any


class EvofeedError(Exception):
    """Base class of evofeed's errors: a message and the file, line or item at fault.

    Args:
        message: what is wrong, with the offending value, and the next step.
        path: the file, URL or shard at fault, if any.
        line: 1-based line in `path`, if known.
        item: the chain, job or dataset concerned, if any.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        line: int | None = None,
        item: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path or None
        self.line = line
        self.item = item

    def __str__(self) -> str:
        location = self.path or ""
        if self.line is not None:
            location += f":{self.line}"
        parts = [part for part in (self.item, location) if part]
        return f"{': '.join(parts)}: {self.message}" if parts else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception pickles only positional arguments; these are keyword-only.
        return _rebuild, (type(self), self.message, self.__dict__.copy())

    def to_dict(self) -> dict[str, Any]:
        """The error as plain JSON-ready values, for reports and ledgers."""
        return {
            "type": type(self).__name__,
            "message": self.message,
            "path": self.path,
            "line": self.line,
            "item": self.item,
        }


def _rebuild(cls: type[EvofeedError], message: str, state: dict[str, Any]) -> EvofeedError:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class InputError(EvofeedError):
    """An input file is wrong."""


class MsaError(InputError):
    """An alignment (a3m, Stockholm, FASTA) cannot be read as one."""


class MmcifError(InputError):
    """A structure file (mmCIF, PDB) cannot be used."""


class TemplateError(InputError):
    """A template hit or its hit file (hhr, hmmsearch) cannot be used."""


class NoProtein(MmcifError, MsaError):
    """An input without protein chains, such as DNA or ligands: left out, not broken."""


class UnusedInput(InputError):
    """A file that looks like an input but belongs to no chain; says why."""


class LoneChain(InputError):
    """A single chain where a complex is needed."""


class SearchFailed(InputError):
    """A search program crashed, took too long or wrote an incomplete result."""


class FeatureError(EvofeedError):
    """An array does not match the feature table."""


class StoreError(EvofeedError):
    """A dataset cannot be read or written."""


class DatasetMissing(StoreError):
    """A dataset, snapshot or ref does not exist."""


class ChainMissing(StoreError, KeyError):
    """The snapshot does not have that chain."""


class ShardMissing(StoreError):
    """A shard of the manifest does not exist in the storage."""


class ShardCorrupt(StoreError):
    """Bytes do not match their checksum or the format; names shard and chain."""


class AccessDenied(StoreError):
    """A storage refuses access: credentials are missing, expired or insufficient."""


class ChainRefused(StoreError):
    """A storage fails for one chain while it answers for others."""


class SchemaMismatch(StoreError):
    """The dataset was written with a format this reader does not know."""


class RefConflict(StoreError):
    """Another process moved the ref first: read it again and retry."""


class TooSimilar(StoreError):
    """Chains of two parts of a split are more alike than it allows."""


class LoaderError(EvofeedError):
    """The loader cannot continue."""


class WorkerDied(LoaderError):
    """A reader process died; includes its last output."""


class CannotResume(LoaderError):
    """A saved loader state does not fit this dataset or configuration."""


class JobError(EvofeedError):
    """A featurize job cannot run or has failed."""


class ServiceError(EvofeedError):
    """The manifest service refused or failed."""


class TrainerError(EvofeedError):
    """Training cannot start or continue."""


class CheckpointError(TrainerError):
    """A checkpoint is incomplete or does not fit the model."""


class KernelError(EvofeedError):
    """A fused op cannot run where its tensors are."""


class UnsupportedShape(KernelError):
    """A fused op was called with a shape or dtype that none of its kernels supports."""
