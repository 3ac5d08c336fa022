"""How much memory a prediction takes on each GPU, and what to say where it is not there.

What grows with the square of the residues decides: the pairs, and beside them either what a
triangle multiplication has or the templates. Everything else is made in parts, as many rows at a
time as fit (`rows`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from evofeed.base.errors import TrainerError
from evofeed.trainer.model.config import ModelConfig

_BFLOAT16 = 2
MOST_RANKS = 64


def prediction_bytes(config: ModelConfig, num_res: int, ranks: int = 1, templates: int = 0) -> int:
    """What the pairs of a chain take on each GPU at the peak of its prediction, in bfloat16.

    Args:
        ranks: GPUs that share the chain.
    """
    sides = (
        1 if ranks == 1 else 2
    )  # of a triangle's product; a rank alone makes the other as it goes
    channels = config.c_z + sides * config.evoformer.c_hidden_mul
    if config.template is not None and templates:
        # All templates but for complexes, which keep their sum beside the last one.
        kept = templates if config.multimer is None else min(templates, 2)
        of_stack = kept * config.template.c_t + sides * config.template.c_hidden_tri_mul
        channels = max(channels, config.c_z + of_stack)
    return num_res * -(-num_res // ranks) * channels * _BFLOAT16


@contextmanager
def explained(
    name: str, config: ModelConfig, num_res: int, ranks: int, device: torch.device,
    templates: int = 0,
) -> Iterator[None]:  # fmt: skip
    """Within it a chain is predicted; says what to do if memory is short.

    Raises:
        TrainerError: it is.
    """
    try:
        yield
    except RuntimeError as error:
        if not (why := refused(error)):
            raise
        need = partial(prediction_bytes, config, num_res, templates=templates)
        cards = f"{ranks} GPU{'s' * (ranks > 1)}" if device.type == "cuda" else "a CPU in bfloat16"
        more = 2 * ranks
        while device.type == "cuda" and more < MOST_RANKS and need(more) > _room(device):
            more *= 2
        raise TrainerError(
            f"out of memory ({why}): pairs of {num_res} residues alone take "
            f"{need(ranks) / 2**30:.1f} GiB on each of {cards}; share them among more with "
            f"torchrun --nproc-per-node {more} -m evofeed.cli predict",
            item=name,
        ) from error


def _room(device: torch.device) -> float:
    """Bytes of a GPU that pairs may take, for the rest takes some, too."""
    if not torch.cuda.is_available():
        return float("inf")
    return 0.85 * torch.cuda.get_device_properties(device).total_memory


def refused(error: RuntimeError) -> str:
    """Its first line if memory was not given, else nothing."""
    first = str(error).partition("\n")[0]  # on a CPU the allocator's has no type of its own
    short = isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in first
    return first if short else ""
