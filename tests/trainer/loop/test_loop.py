"""The loop by itself, on a stand-in model: resume, bad steps, signals, batches over and over."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from tests.trainer.loop.loop_standin import TinyLoader, TinyModel, squared_error, standin_loop
from torch import Tensor, nn

from evofeed.base.errors import TrainerError
from evofeed.trainer.config import OptimConfig
from evofeed.trainer.log.runlog import RunLog, read_steps
from evofeed.trainer.run.checkpoint import CHECKPOINTS
from evofeed.trainer.run.distributed import join_world
from evofeed.trainer.run.gradients import first_nonfinite
from evofeed.trainer.run.loop import Loop
from evofeed.trainer.run.stream import BatchStream, FixedBatches
from evofeed.trainer.run.telemetry import note_signals


@pytest.mark.parametrize("clip", ["global", "per_example"])
def test_a_step_of_two_passes_moves_by_the_mean_of_both_samples_gradients(
    tmp_path: Path, clip: str
) -> None:
    optim = OptimConfig(warmup_steps=0, clip=clip, ema_decay=0.9)
    run = standin_loop(tmp_path, 1, accumulate=2, optim=optim)
    by_hand = TinyModel()
    by_hand.load_state_dict(run.model.state_dict())
    means: dict[str, torch.Tensor] = {}
    for number, batch in zip(range(2), TinyLoader(), strict=False):
        torch.manual_seed(run._sample_seed(0, number))  # of the dropout
        by_hand.zero_grad()
        squared_error(by_hand(batch), batch)[0].backward()
        if clip == "per_example":
            torch.nn.utils.clip_grad_norm_(by_hand.parameters(), optim.max_norm)
        for name, parameter in by_hand.named_parameters():
            assert parameter.grad is not None
            means[name] = means.get(name, 0) + parameter.grad / 2
    run.run()
    assert run.optimizer.updates.item() == 1
    assert run.loader.state_dict() == {"position": 2}
    norm = torch.stack([mean.norm() for mean in means.values()]).norm()
    factor = min(1.0, optim.max_norm / float(norm)) if clip == "global" else 1.0
    for name, moment in run.optimizer.views(run.optimizer.exp_avg):
        expected = (1 - optim.beta1) * factor * means[name]
        torch.testing.assert_close(moment, expected, rtol=1e-4, atol=1e-9, msg=name)


def test_steps_without_a_finite_gradient_change_nothing_and_are_written_down(
    tmp_path: Path,
) -> None:
    before: list[list[torch.Tensor]] = []

    def note(step: int) -> None:
        before.append([buffer.clone() for buffer in run.optimizer.state().values()])

    with RunLog(tmp_path, steps=4) as log:
        run = standin_loop(
            tmp_path, 4, accumulate=3, loader=TinyLoader(bad=(4,)), log=log, watch=note
        )
        result = run.run()
    assert result.skipped == [1]
    assert run.optimizer.updates.item() == 3
    assert all(torch.equal(a, b) for a, b in zip(before[1], before[2], strict=True))
    lines = read_steps(tmp_path)
    assert lines[1]["samples"] == ["chain3", "chain4", "chain5"]  # all passes of the step
    assert lines[1]["terms"] == {"error": None}
    assert [entry["finite"] for entry in lines] == [1, 0, 1, 1]


def test_too_many_bad_steps_in_a_row_end_the_run_with_a_reason(tmp_path: Path) -> None:
    run = standin_loop(tmp_path, 9, max_skipped=3, loader=TinyLoader(bad=(1, 2, 3, 4)))
    with pytest.raises(TrainerError, match="3 steps in a row"):
        run.run()


def test_sigterm_saves_and_ends_the_run_cleanly(tmp_path: Path) -> None:
    def kill_at_five(step: int) -> None:
        if step == 5:  # twice, as timeout does: the process, then its group
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    result = standin_loop(tmp_path, 50, watch=kill_at_five).run()
    assert result.stopped_by == "SIGTERM"
    assert result.step == 6
    assert result.checkpoint is not None and result.checkpoint.name == "step_00000006"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_loader_without_batches_is_an_error_and_not_an_endless_loop(tmp_path: Path) -> None:
    class Empty(TinyLoader):
        def __iter__(self):
            return iter(())

    with pytest.raises(TrainerError, match="no batch at all"):
        standin_loop(tmp_path, 2, loader=Empty()).run()


def test_validation_sees_the_averaged_weights_and_restores_the_others(tmp_path: Path) -> None:
    averaged = []

    def validate() -> dict[str, float]:
        averaged.append(torch.equal(run.optimizer.param, weights[-1]))
        return {"lddt_ca": 0.5}

    weights: list[torch.Tensor] = []

    def note(step: int) -> None:
        weights.append(run.optimizer.param.clone())

    run = standin_loop(tmp_path, 5, validate_every=4, validate=validate, watch=note)
    run.run()
    assert averaged == [False, False]  # after the fourth step and at the end
    assert run.model.training
    assert not torch.equal(run.optimizer.param, run.optimizer.ema)
    assert (tmp_path / CHECKPOINTS).is_dir()


def test_a_caller_may_average_the_gradient(tmp_path: Path) -> None:
    norms = []

    def look_then_average(run: Loop) -> None:
        norms.append(float(run.optimizer.grad.norm()))
        run.sync_grad()

    ours = standin_loop(tmp_path / "ours", 6, after_backward=look_then_average).run()
    assert ours.losses == standin_loop(tmp_path / "theirs", 6).run().losses
    assert len(norms) == 6 and all(norms)


@pytest.mark.parametrize(
    ("after_backward", "message"),
    [
        (lambda run: None, r"step 0: after_backward returned without sync_grad\(\)"),
        (lambda run: (run.sync_grad(), run.sync_grad()), "without a new gradient, twice in a step"),
    ],
)
def test_forgotten_or_repeated_averages_are_errors(
    tmp_path: Path, after_backward: object, message: str
) -> None:
    run = standin_loop(tmp_path, 2, after_backward=after_backward)
    with pytest.raises(TrainerError, match=message):
        run.run()
    assert run.optimizer.updates.item() == 0


def test_cuda_means_the_gpu_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with join_world("cuda") as world:
        assert world.device == torch.device("cuda", 1)
    with join_world("cuda:0") as world:
        assert world.device == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "2")
    message = "local rank 2 has no GPU: this host has 2"
    with pytest.raises(TrainerError, match=message), join_world("cuda"):
        pass


def test_signals_that_come_together_ask_for_one_thing_and_a_later_one_is_deadly() -> None:
    noted: list[str] = []
    with note_signals(noted.append, together=1e9):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), note_signals(noted.append, together=-1.0):
        signal.raise_signal(signal.SIGINT)  # returns when it has been noted
        signal.raise_signal(signal.SIGINT)
    assert noted == ["SIGTERM", "SIGTERM", "SIGINT"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 1), nn.Linear(3, 1)
        self.forgotten = nn.Linear(3, 1)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        x = self.trunk(batch["x"])
        return {"left": self.left(x), "right": self.right(x)}


def test_the_module_where_a_pass_stops_being_finite_is_named_first() -> None:
    model, batch = TwoHeads(), {"x": torch.ones(2, 3)}
    with first_nonfinite(model) as names:
        model(batch)
        assert names == []
        with torch.no_grad():
            model.trunk.bias[1] = float("inf")
        model(batch)
    assert names == ["trunk", "left", "right"]


def numbers(stream: BatchStream, count: int) -> list[float]:
    return [float(next(stream)["target"].sum()) for _ in range(count)]


def test_the_first_batches_come_again_and_again() -> None:
    first = numbers(BatchStream(TinyLoader()), 3)
    loader = FixedBatches(TinyLoader(), 3)
    stream = BatchStream(loader)
    assert numbers(stream, 7) == [*first, *first, first[0]]
    assert loader.last_ids == ["chain0"]
    assert stream.epochs == 2
    assert [float(b["target"].sum()) for b in loader.batches()] == first
    assert numbers(stream, 1) == first[1:2]
    later = FixedBatches(TinyLoader(), 3)
    later.load_state_dict(loader.state_dict())  # within an epoch
    assert numbers(BatchStream(later), 2) == numbers(stream, 2)


def test_kept_batches_are_copies_that_a_loader_may_overwrite() -> None:
    class Reusing(TinyLoader):
        def __iter__(self):
            buffers: dict[str, Tensor] = {}
            for batch in super().__iter__():
                buffers = buffers or {k: torch.empty_like(v) for k, v in batch.items()}
                for name, value in batch.items():
                    buffers[name].copy_(value)
                yield buffers

    assert numbers(BatchStream(FixedBatches(Reusing(), 3)), 4) == numbers(
        BatchStream(FixedBatches(TinyLoader(), 3)), 4
    )
