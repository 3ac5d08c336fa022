"""The check-list of `evofeed doctor` on recorded machines: what each has, and what to do there.

The machines are written as nvidia-smi, torch and the environment say it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from evofeed.doctor import Check, check_list, command, machine_texts

MACHINES = Path(__file__).parent / "machines"


def checks_of(name: str) -> dict[str, Check]:
    _, *sections = (MACHINES / f"{name}.txt").read_text().split("=== ")
    texts = dict(section.rstrip("\n").split("\n", 1) for section in sections)
    found = check_list(texts)
    assert len({check.name for check in found}) == len(found)
    return {check.name: check for check in found}


FOUND = {
    "dgx_h100": {
        "driver": "580.65.06, torch of CUDA 13.0",
        "NCCL": "2.28.9",
        "NCCL_DEBUG": "WARN",
    },
    "container_on_dgx": {"cards in torch": "2 of 4"},
}

TO_DO = {
    "dgx_h100": {},
    "container_on_dgx": {
        "shared memory": "--shm-size",
        "driver": "needs driver 580 or newer",
        "cards in torch": "container",
        "CUDA_LAUNCH_BLOCKING": "unset",
        "NCCL_DEBUG": "unset",
        "NCCL_IB_DISABLE": "TCP",
    },
    "laptop": {"shared memory": "--shm-size"},
}


@pytest.mark.parametrize("machine", FOUND)
def test_what_a_machine_has_is_said(machine: str) -> None:
    said = {name: check.found for name, check in checks_of(machine).items()}
    assert said | FOUND[machine] == said


@pytest.mark.parametrize("machine", TO_DO)
def test_all_that_is_amiss_and_nothing_else_comes_with_what_to_do(machine: str) -> None:
    wanted = TO_DO[machine]
    to_do = {name: check.to_do for name, check in checks_of(machine).items() if check.to_do}
    assert list(to_do) == list(wanted)
    assert all(words in to_do[name] for name, words in wanted.items()), to_do


def test_this_machine_has_texts_for_the_list() -> None:
    assert any(check.name == "shared memory" for check in check_list(machine_texts()))
    assert check_list({}) == []


def test_what_is_missing_is_named_with_the_extra_that_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_version", lambda name: None if name == "torch" else "1.0")
    command.doctor(as_json=False)
    assert "pip install 'evofeed[train]'" in " ".join(capsys.readouterr().out.split())
