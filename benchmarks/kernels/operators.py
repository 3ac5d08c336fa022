"""Operators at models' sizes, as their folders declare them, beside PyTorch and its compiler."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from benchmarks.gpu_times import Row
from benchmarks.kernels.common import BF16, DEVICE, both_ways

from evofeed.kernels.runtime.cases import Draw, declared

TIMED = [name for name, operator in declared().items() if operator.timed]


def section(name: str, peers: bool) -> Iterator[Row]:
    operator = declared()[name]
    for case, (sequences, residues, make) in operator.timed.items():
        made = [make(Draw(sequences, residues, DEVICE, BF16)) for _ in range(3)]
        sets = [[*each.tensors.values()] for each in made]
        ops = {"evofeed": made[0].call(operator.op)}
        if peers:
            torch.compiler.reset()
            ops["torch eager"] = made[0].call(operator.reference)
            ops["torch.compile"] = torch.compile(ops["torch eager"], dynamic=False)
        for who, op in ops.items():
            yield {"case": case, "who": who, **both_ways(op, sets, [*range(len(sets[0]))])}
