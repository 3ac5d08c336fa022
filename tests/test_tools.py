"""`evofeed doctor`, and what pictures are drawn from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.store.records import tiny_record

from evofeed.doctor import Check, advice, check_list, command, machine_texts
from evofeed.doctor.command import GPU_TESTED
from evofeed.protein.assembly_numbers import pseudo_beta_distances
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.residues import ATOM_ORDER
from evofeed.viz import draw_distogram

MACHINES = Path(__file__).parent / "doctor" / "machines"
"""Machines as nvidia-smi, torch and the environment say them."""
KNOWN = yaml.safe_load(MACHINES.with_suffix(".yaml").read_text())


@pytest.mark.system  # it asks nvidia-smi
def test_doctor_tells_versions_and_is_content_with_a_full_install(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command.doctor(as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["packages"]["base"]["pyarrow"]
    assert report["cores"] >= 1
    assert report["programs"] == {name: shutil.which(name) for name in report["programs"]}
    command.doctor(as_json=False)
    said = capsys.readouterr().out
    assert "pyarrow" in said and f"{report['memory_gb']} GB" in said
    assert "_gb" not in said and "gpu_trouble" not in said
    assert said.count("torch 2.11 triton 3.6") == 1
    pins = (Path(__file__).parent.parent / "constraints-gpu.txt").read_text()
    assert {f"{name}=={version}.0" for name, version in GPU_TESTED.items()} <= set(pins.split())


ADVICE = yaml.safe_load(MACHINES.with_name("advice.yaml").read_text())


@pytest.mark.parametrize(("change", "word"), ADVICE["amiss"])
def test_doctor_says_what_will_be_in_the_way(change: dict[str, object], word: str) -> None:
    assert advice(ADVICE["good"]) == []
    (line,) = advice(ADVICE["good"] | change)
    assert word in line


def test_distances_are_between_resolved_betas(tmp_path: Path) -> None:
    positions = np.zeros([3, 37, 3], np.float32)
    positions[:, ATOM_ORDER["CB"], 0] = [0, 3, 7]
    mask = np.zeros([3, 37], np.uint8)
    mask[:2, ATOM_ORDER["CB"]] = 1
    record = tiny_record(all_atom_positions=positions, all_atom_mask=mask)
    distance = pseudo_beta_distances(AssemblyRecord.of_chain(record))
    assert distance[0, 1] == 3
    assert np.isfinite(distance).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    drawn = draw_distogram(record, np.full([3, 3, 64], 1 / 64, np.float32), tmp_path / "d.png")
    assert drawn.read_bytes().startswith(b"\x89PNG")


def checks_of(name: str) -> dict[str, Check]:
    _, *sections = (MACHINES / f"{name}.txt").read_text().split("=== ")
    texts = dict(section.rstrip("\n").split("\n", 1) for section in sections)
    checks = check_list(texts)
    assert len({check.name for check in checks}) == len(checks)
    return {check.name: check for check in checks}


@pytest.mark.parametrize("machine", KNOWN)
def test_what_a_machine_has_is_said_and_all_that_is_amiss_comes_with_what_to_do(
    machine: str,
) -> None:
    checks, expected = checks_of(machine), KNOWN[machine]
    values = {name: check.found for name, check in checks.items()}
    assert values | expected["found"] == values
    to_do = {name: check.to_do for name, check in checks.items() if check.to_do}
    assert list(to_do) == list(expected["to_do"])
    assert all(words in to_do[name] for name, words in expected["to_do"].items()), to_do


def test_this_machine_has_texts_for_the_list() -> None:
    assert any(check.name == "shared memory" for check in check_list(machine_texts()))
    assert check_list({}) == []


def test_what_is_missing_is_named_with_the_extra_that_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_version", lambda name: None if name == "torch" else "1.0")
    command.doctor(as_json=False)
    assert "pip install 'evofeed[train]'" in " ".join(capsys.readouterr().out.split())
