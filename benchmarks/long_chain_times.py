"""Where the time and the memory of a long chain's prediction go, for `long_chains.py`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch

from evofeed.trainer.model.evoformer import ExtraMSAStack
from evofeed.trainer.model.structure_module import StructureModule
from evofeed.trainer.parallel import inference, stacks


class Stages:
    """Seconds and peak memory of the stages of a pass by rows, each said as it ends.

    A chain that is predicted at once has none. Between two stages the device is waited for.
    """

    def __init__(self) -> None:
        self.found: dict[str, dict[str, float]] = {}
        for name, place, function in (
            ("embedders", inference, "embedded_rows"),
            ("templates", inference, "add_templates"),
            ("MSA stacks", inference, "msa_rows"),
            ("heads", inference, "_heads"),
            ("structure", StructureModule, "_run"),
        ):
            setattr(place, function, self._timed(name, getattr(place, function)))

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            began = time.perf_counter()
            found = function(*given, **named)
            torch.cuda.synchronize()
            stage = "extra MSA" if given and isinstance(given[0], ExtraMSAStack) else name
            gib = torch.cuda.max_memory_allocated() / 2**30
            seconds = time.perf_counter() - began
            self.found[stage] = {"seconds": round(seconds, 3), "peak_gib": round(gib, 2)}
            print(stage, self.found[stage], flush=True)
            return found

        return run

    def peak(self) -> float:
        """Of those stages, since the last call."""
        return max((stage["peak_gib"] for stage in self.found.values()), default=0.0)


class Blocks:
    """Seconds of each block of the Evoformer in the last pass, by the device's own clock."""

    def __init__(self, no_blocks: int) -> None:
        self.no_blocks = no_blocks
        self.ends: list[torch.cuda.Event] = []
        block = stacks.msa_block

        def timed_block(*given: Any, **named: Any) -> Any:
            found = block(*given, **named)
            self.ends.append(torch.cuda.Event(enable_timing=True))
            self.ends[-1].record()
            return found

        stacks.msa_block = timed_block

    def seconds(self) -> list[float]:
        """Those since the last call; after a synchronization."""
        last, self.ends = self.ends[-self.no_blocks - 1 :], []
        return [round(a.elapsed_time(b) / 1e3, 3) for a, b in itertools.pairwise(last)]
