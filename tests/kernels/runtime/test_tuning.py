"""What `benchmarks/tune_kernels.py` writes is what the kernels read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from benchmarks import tune_kernels
from benchmarks.tile_cases.attention import ATTENTION, attention_cases

import evofeed.kernels.runtime.tiles as room
from evofeed.kernels.runtime.tiles import HopperTiles, Tile, hopper_tiles

CHOICES = json.loads(Path(room.__file__).with_name("choices.json").read_text())


def test_every_saved_choice_is_raced_again() -> None:
    assert {entry["name"] for entry in CHOICES["attention"]} <= set(ATTENTION)
    cases = [*tune_kernels.every_case(float32=False), *tune_kernels.every_case(float32=True)]
    raced = {case.key["op"] for case in cases if case.key["kind"] == "tile"}
    assert set(CHOICES["tiles"]) <= raced
    assert all(case.candidates for case in cases)


def test_rows_too_long_for_one_kernel_keep_the_tiles_of_the_others(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    before = hopper_tiles(768, 32, True)
    forward, gradient = Tile(128, 64, 8, 2), Tile(64, 64, 4, 3)
    times: dict[str, list[tuple[float, Any]]] = {
        "forward": [(2.0, forward), (3.0, Tile(64, 64, 4, 2))],
        "backward": [],
        "bias_gradient": [(5.0, (gradient, 3))],
    }
    cases = [c for c in attention_cases() if c.key["name"] == "triangle 768"]
    assert [case.key["part"] for case in cases] == list(times)
    assert tune_kernels.winners([(case, times[case.key["part"]]) for case in cases[:2]]) == {
        "card": "a card", "attention": [], "tiles": {},
    }  # fmt: skip
    found = tune_kernels.winners([(case, times[case.key["part"]]) for case in cases])
    saved = tune_kernels.merged(CHOICES, found)
    assert len(saved["attention"]) == len(CHOICES["attention"])
    monkeypatch.setattr(room, "_saved", lambda: saved)
    room._saved_attention.cache_clear()
    assert hopper_tiles(768, 32, True) == HopperTiles(forward, before.backward, gradient, 3)
    room._saved_attention.cache_clear()
