"""How much memory a prediction takes on each GPU, and what to say where it is not there.

What grows with the square of the residues decides: the pairs, and what a triangle multiplication
has beside them. Everything else is made in parts, as many rows at a time as fit (`rows`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from evofeed.errors import TrainerError
from evofeed.trainer.model.config import ModelConfig

_BFLOAT16 = 2


def prediction_bytes(config: ModelConfig, num_res: int, ranks: int = 1) -> int:
    """What the pairs of a chain take on each GPU at the peak of its prediction, in bfloat16.

    Args:
        config: of the model.
        num_res: residues.
        ranks: GPUs that share the chain.
    """
    # Pairs; of a triangle multiplication both projections, their product and the update.
    channels = config.c_z + 3 * config.evoformer.c_hidden_mul + config.c_z
    return num_res * -(-num_res // ranks) * channels * _BFLOAT16


@contextmanager
def explained(
    name: str, config: ModelConfig, num_res: int, ranks: int, device: torch.device
) -> Iterator[None]:
    """Within it a chain is predicted; says what to do if memory is short.

    Raises:
        TrainerError: it is.
    """
    try:
        yield
    except RuntimeError as error:
        if not (why := refused(error)):
            raise
        gib = prediction_bytes(config, num_res, ranks) / 2**30
        cards = f"{ranks} GPU{'s' * (ranks > 1)}" if device.type == "cuda" else "a CPU in bfloat16"
        raise TrainerError(
            f"out of memory ({why}): pairs of {num_res} residues alone take {gib:.1f} GiB on each "
            f"of {cards}; share them among more with torchrun --nproc-per-node {2 * ranks} -m "
            "evofeed.cli predict",
            item=name,
        ) from error


def refused(error: RuntimeError) -> str:
    """Its first line if memory was not given, else nothing."""
    first = str(error).partition("\n")[0]  # on a CPU the allocator's has no type of its own
    short = isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in first
    return first if short else ""
