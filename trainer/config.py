"""Configuration of a training run: a preset, its own fields, and overrides for other rooms.

A YAML file has the same names: `preset` selects the starting point, every other
line replaces one value, and `model`, `loss` and `loader` replace single fields of
those configurations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evofeed.base.configs import Config, check_choice, check_numbers
from evofeed.base.files import write_atomic

PRESETS = ("initial_training", "finetuning", "tiny", "overfit", "multimer", "tiny_multimer")
PRECISIONS = ("bf16", "fp16", "tf32", "fp32")
KERNELS = ("fused", "torch")
CLIPPING = ("global", "per_example", "none")
GRADIENTS = ("none", "bf16", "hierarchical", "powersgd", "int8", "topk")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """Optimizer settings. Defaults are AF2's initial training with OpenFold's epsilon."""

    learning_rate: float = 1e-3
    """Highest learning rate, AF2 SI 1.11.3."""
    warmup_steps: int = 1_000
    """Steps of linear rise from 0; the first update has learning rate 0, as in OpenFold."""
    decay_after: int = 50_000
    """Step after which the first decay follows."""
    decay_every: int = 50_000
    """Steps between two decays."""
    decay_factor: float = 0.95
    """Factor of each decay."""
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-5
    """Added to the root of the second moment; OpenFold 1e-5, AF2 and MLPerf 1e-6."""
    clip: str = "global"
    """`global`: the averaged gradient (OpenFold, MLPerf); `per_example`: each sample's
    gradient before averaging (AF2), with batches of one; `none`."""
    max_norm: float = 0.1
    """Gradients with a larger norm are scaled down to this norm."""
    ema_decay: float = 0.999
    """Decay of the moving average that validation and prediction use; at 0 it is the weights."""

    def __post_init__(self) -> None:
        check_choice(self, "clip", CLIPPING)
        check_numbers(self, "learning_rate", "max_norm", "eps", "decay_factor", above=0)
        check_numbers(self, "beta1", "beta2", "ema_decay", least=0, below=1)
        check_numbers(self, "warmup_steps", least=0)
        check_numbers(self, "decay_every", least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientConfig:
    """Averaging of gradients over ranks; between hosts all modes but `none` send parts."""

    mode: str = "none"
    """`none`: one all-reduce; `hierarchical`: inside hosts, between hosts, inside hosts; the others
    do that with fewer bytes between hosts: `bf16`, `powersgd`, `int8`, `topk`. On a single host
    each rank counts as a host."""
    rank: int = 4
    """Rank of the factors of `powersgd`."""
    density: float = 0.001
    """Share of the entries that `topk` sends."""
    momentum: float = 0.0
    """Momentum of the residual of `topk`; DGC uses 0.9, with `optim: {beta1: 0}`."""
    warmup_steps: int = 1_000
    """First steps: exact in `powersgd`, with falling density in `topk`."""

    def __post_init__(self) -> None:
        check_choice(self, "mode", GRADIENTS)
        check_numbers(self, "rank", least=1)
        check_numbers(self, "warmup_steps", least=0)
        check_numbers(self, "density", above=0, most=1)
        check_numbers(self, "momentum", least=0, below=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(Config):
    """All settings that determine the results of a run; `--out` and `--dataset` are not here."""

    preset: str = "initial_training"
    """Starting point of model, loss and loader: see `docs/training.md`."""
    seed: int = 0
    """Seed of the weights, the sample order and every dropout mask."""
    steps: int = 1_000
    """Total weight updates, including those before a resume."""
    accumulate: int = 1
    """Backward passes per rank and step; the batch is `accumulate * ranks / axial * batch_size`."""
    axial: int = 1
    """Ranks that share a sample (dynamic axial parallelism); must divide the ranks. 1: off."""
    precision: str = "bf16"
    """`bf16`: autocast, master weights in float32; `fp16`: the same with a dynamic scale of the
    loss, for GPUs without bfloat16; `tf32`; `fp32`."""
    kernels: str = "fused"
    """`fused`: evofeed.kernels on a GPU; `torch`: the plain operators everywhere."""
    cuda_graphs: bool = True
    """On a GPU record forward and backward once per shape of a sample and replay them."""
    deterministic: bool = False
    """Only algorithms that give the same bits in every run; slower on a GPU."""
    checkpoint_every: int = 500
    """Steps between checkpoints; 0 writes one only at the end."""
    keep_checkpoints: int = 3
    """Number of newest checkpoints to keep; older ones are deleted."""
    validate_every: int = 500
    """Steps between validations, if there is a validation set, and one at the end; 0: none."""
    validate_batches: int = 16
    """Maximum batches of the validation set per validation."""
    profile_steps: int = 3
    """Steps sampled with the profiler for the run report; 0 samples none and counts no FLOPs."""
    max_skipped: int = 20
    """Consecutive steps without a finite gradient that end the run."""
    hang_seconds: float = 1_080.0
    """Seconds without a step that end a rank, with the stacks of its threads on standard error:
    longer than the loader waits for a storage that does not answer. 0: never."""
    prefetch: int = 16
    """Batches a rank's loader reads ahead; more help if storage is sometimes slow."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """Learning rate, Adam, clipping, moving average."""
    gradients: GradientConfig = field(default_factory=GradientConfig)
    """Compression of gradients between ranks."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the model configuration that differ from the preset."""
    loss: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the loss configuration that differ from the preset."""
    loader: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the loader configuration that differ from the preset."""
    shares: tuple[float, ...] = ()
    """Share of each dataset in the mixture, in their order; AF2 uses a quarter PDB and three
    quarters distillation. Empty: equal shares."""
    fixed_batches: int = 0
    """Number of first batches to train on, repeatedly, to overfit them; without a validation set
    they are validated too. 0: every batch is new."""

    def __post_init__(self) -> None:
        check_choice(self, "preset", PRESETS)
        check_choice(self, "precision", PRECISIONS)
        check_choice(self, "kernels", KERNELS)
        check_numbers(self, "steps", "accumulate", "axial", "keep_checkpoints", least=1)
        check_numbers(self, "max_skipped", "prefetch", "validate_batches", least=1)
        check_numbers(self, "checkpoint_every", "validate_every", "profile_steps", least=0)
        check_numbers(self, "fixed_batches", "hang_seconds", least=0)
        if min(self.shares, default=1.0) <= 0:
            raise ValueError(f"shares are {list(self.shares)}, but each must be above 0")


def save_config(config: TrainConfig, path: Path) -> None:
    """Writes a run as YAML, from which `load_config` reads an equal configuration."""
    import yaml

    write_atomic(path, yaml.safe_dump(config.to_dict(), sort_keys=False))
