"""One training run as data: a preset, a few numbers, and overrides for the other rooms.

A YAML file holds the same names: `preset` picks the starting point, every other
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
    """How weights move. Defaults are AF2's initial training with OpenFold's epsilon."""

    learning_rate: float = 1e-3
    """Highest learning rate, AF2 SI 1.11.3."""
    warmup_steps: int = 1_000
    """Steps of linear rise from 0; the first update has learning rate 0, as in OpenFold."""
    decay_after: int = 50_000
    """The first decay comes right after this step."""
    decay_every: int = 50_000
    """Steps between two decays."""
    decay_factor: float = 0.95
    """What each decay multiplies by."""
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-5
    """Added to the root of the second moment; OpenFold 1e-5, AF2 and MLPerf 1e-6."""
    clip: str = "global"
    """`global`: the averaged gradient (OpenFold, MLPerf); `per_example`: each sample's
    gradient before averaging (AF2), with batches of one; `none`."""
    max_norm: float = 0.1
    """Gradients longer than this are scaled down to it."""
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
    """How the ranks' gradients become their mean; between hosts all modes but `none` send parts."""

    mode: str = "none"
    """`none`: one all-reduce; `hierarchical`: inside hosts, between, inside; the others do that
    with fewer bytes between: `bf16`, `powersgd`, `int8`, `topk`. On one host, between ranks."""
    rank: int = 4
    """Of the factors of `powersgd`."""
    density: float = 0.001
    """Share of the entries that `topk` sends."""
    momentum: float = 0.0
    """Of what waits in `topk`; DGC's is 0.9, which goes with `optim: {beta1: 0}`."""
    warmup_steps: int = 1_000
    """First steps: exact in `powersgd`, of falling density in `topk`."""

    def __post_init__(self) -> None:
        check_choice(self, "mode", GRADIENTS)
        check_numbers(self, "rank", least=1)
        check_numbers(self, "warmup_steps", least=0)
        check_numbers(self, "density", above=0, most=1)
        check_numbers(self, "momentum", least=0, below=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(Config):
    """Everything that decides what a run computes; `--out` and `--dataset` are not in it."""

    preset: str = "initial_training"
    """Where model, loss and loader start from: AF2's two training stages, or a laptop's."""
    seed: int = 0
    """Of the weights, the sample order and every dropout mask."""
    steps: int = 1_000
    """Weight updates in all, those before a resume included."""
    accumulate: int = 1
    """Backward passes per rank and step; the batch is `accumulate * ranks / axial * batch_size`."""
    axial: int = 1
    """Ranks that share a sample (dynamic axial parallelism); must divide the ranks. 1: none do."""
    precision: str = "bf16"
    """`bf16`: autocast, master weights in float32; `fp16`: the same with a dynamic scale of the
    loss, for GPUs without bfloat16; `tf32`; `fp32`."""
    kernels: str = "fused"
    """`fused`: evofeed.kernels where there is a GPU; `torch`: the plain operators everywhere."""
    cuda_graphs: bool = True
    """On a GPU record forward and backward once per shape of a sample and replay them."""
    deterministic: bool = False
    """Only algorithms that give the same bits twice; slower on a GPU."""
    checkpoint_every: int = 500
    """Steps between checkpoints; 0 writes one only at the end."""
    keep_checkpoints: int = 3
    """Older ones are deleted."""
    validate_every: int = 500
    """Steps between validations, if there is a validation set, and one at the end; 0: none."""
    validate_batches: int = 16
    """Batches of the validation set that each validation looks at, if it has so many."""
    profile_steps: int = 3
    """Steps sampled with the profiler for the run report; 0 takes none and counts no FLOPs."""
    max_skipped: int = 20
    """So many steps in a row without a finite gradient end the run."""
    hang_seconds: float = 1_080.0
    """So long without a step ends a rank, with the stacks of its threads on standard error: longer
    than the loader waits for a storage that does not answer. 0: never."""
    prefetch: int = 16
    """Batches a rank's loader reads ahead; more help where storage is sometimes slow."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """Learning rate, Adam, clipping, moving average."""
    gradients: GradientConfig = field(default_factory=GradientConfig)
    """What the ranks send each other of their gradients."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the model configuration that differ from the preset."""
    loss: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the loss configuration that differ from the preset."""
    loader: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the loader configuration that differ from the preset."""
    shares: tuple[float, ...] = ()
    """Share of each dataset in the mixture, in their order; AF2's is a quarter PDB and three
    quarters distillation. Empty: equal shares."""
    fixed_batches: int = 0
    """Train on the first so many batches alone, again and again, to learn them by heart;
    without a validation set they are measured too. 0: every batch is new."""

    def __post_init__(self) -> None:
        for name, known in (("preset", PRESETS), ("precision", PRECISIONS), ("kernels", KERNELS)):
            check_choice(self, name, known)
        check_numbers(self, "steps", "accumulate", "axial", "keep_checkpoints", least=1)
        check_numbers(self, "max_skipped", "prefetch", "validate_batches", least=1)
        check_numbers(self, "checkpoint_every", "validate_every", "profile_steps", least=0)
        check_numbers(self, "fixed_batches", "hang_seconds", least=0)
        if min(self.shares, default=1.0) <= 0:
            raise ValueError(f"shares are {list(self.shares)}, but each must be above 0")


def save_config(config: TrainConfig, path: Path) -> None:
    """Write a run as YAML that `load_config` reads back equal."""
    import yaml

    write_atomic(path, yaml.safe_dump(config.to_dict(), sort_keys=False))
