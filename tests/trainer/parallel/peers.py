"""Memory that several processes of one machine share, as GPUs of one host do."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from evofeed.kernels.runtime.peer_memory import PeerMemory, nbytes

SLOT = 1 << 16


def shared_files(folder: Path, group: dist.ProcessGroup) -> PeerMemory:
    """`PeerMemory` whose buffers are files that all ranks of the group map."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    paths = [folder / f"peers.{size}.{n}" for n in range(size)]
    paths[rank].write_bytes(bytes(nbytes(SLOT)))
    dist.barrier(group)
    mapped = [
        torch.from_file(str(p), shared=True, size=nbytes(SLOT), dtype=torch.uint8) for p in paths
    ]
    return PeerMemory(mapped, rank)
