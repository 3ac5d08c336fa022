"""The check-list of `evofeed doctor` on recorded machines: what each has, and what to do there.

The machines are written in the formats that nvidia-smi, /proc and /sys document.
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
        "locked memory": "unlimited, without CAP_IPC_LOCK",
        "InfiniBand": "8 of 8 ports active, 3200 Gb/s in all",
        "GPUDirect RDMA": "nvidia_peermem",
        "driver": "580.65.06, torch of CUDA 13.0",
        "NCCL": "2.28.9",
        "NCCL_DEBUG": "WARN",
        "cards": "8 x NVIDIA H100 80GB HBM3",
        "links between cards": "NV18",
    },
    "pcie_roce": {
        "locked memory": "0 MiB, with CAP_IPC_LOCK",
        "RoCE": "1 of 1 ports active, 100 Gb/s in all",
        "GPUDirect RDMA": "DMA-BUF of the open kernel modules",
    },
    "sliced_a100": {"RDMA": "no device: between hosts NCCL would use TCP; one host needs none"},
    "laptop": {"locked memory": "8 MiB, without CAP_IPC_LOCK"},
}

TO_DO = {
    "dgx_h100": {},
    "container_on_dgx": {
        "locked memory": "--ulimit memlock=-1",
        "shared memory": "--shm-size",
        "port mlx5_1/1": "subnet manager",
        "port mlx5_3/1": "cable",
        "GPUDirect RDMA": "modprobe nvidia_peermem",
        "driver": "needs driver 580 or newer",
        "cards in torch": "container",
        "CUDA_LAUNCH_BLOCKING": "unset",
        "NCCL_DEBUG": "unset",
        "NCCL_IB_DISABLE": "TCP",
    },
    "pcie_roce": {
        "cards": "CUDA_VISIBLE_DEVICES",
        "links between cards": "axial: 1",
    },
    "sliced_a100": {"MIG": "nvidia-smi -mig 0"},
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


def test_pairs_of_cards_without_nvlink_are_named() -> None:
    assert checks_of("container_on_dgx")["cards in torch"].found == "2 of 4"
    found = checks_of("pcie_roce")["links between cards"].found
    assert "GPU0-GPU2 SYS" in found and "1 more" in found and "GPU0-GPU1" not in found


def test_this_machine_has_a_limit_of_locked_memory_and_texts_for_it() -> None:
    texts = machine_texts()
    assert "Max locked memory" in texts["limits"]
    assert any(check.name == "locked memory" for check in check_list(texts))
    assert check_list({}) == []


def test_what_is_missing_is_named_with_the_extra_that_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_version", lambda name: None if name == "torch" else "1.0")
    command.doctor(as_json=False)
    assert "pip install 'evofeed[train]'" in " ".join(capsys.readouterr().out.split())
