"""A whole training step of OpenFold3, its own code, before and after `to_fused`.

    PYTHONPATH=src python benchmarks/af3_step.py DATA --tokens 384 640 768 --out PATH

DATA is a folder of prepared entries (`evofeed entries prepare`), of which those with fewer tokens
are passed over: batches come from evofeed's loader as the step runs, with rows of alignments
repeated to `--sequences`. `--projects` is the folder that holds OpenFold3's package and
`ml_collections`. A step is what `OpenFold3AllAtom.training_step` does
for one sample: trunk with `--recycles`, the roll-out of 20 denoising steps, permutation of labels,
48 noised copies through the diffusion module, confidence heads, all losses, backward pass,
clipping, Adam, moving average; bfloat16 by autocast with the parts in float32 that the project runs
so, TF32 allowed. Its metrics are left out. Weights are the project's first ones (one block of a
stack copied), zeros replaced by small numbers.

Ways: `project` with the training preset, which recomputes every block; `cuequivariance` the same
with its switch for that library; `fused` is `to_fused(model)`, which recomputes as the preset
does; `recorded` is `to_fused(model, cuda_graphs=True, keep=KEEP)`, once for each `--keep`.
`--optimizer project` is its per-sample clipping, Adam and moving
average, `flat` evofeed's `FlatOptimizer`.

`step_ms` and its parts: median, first and third quartile of steps behind the warm-up, wall clock,
the GPU waited for at the end of each part; `wait_ms`: for the loader. `kept_gb`: what
each part of the model keeps for the backward pass; `parts_ms`: their forward passes in one step
more, each waited for, with all recycles and denoising steps; `peak_gb`: the most of a step, weights
and optimizer included. Proof on a laptop: `TRITON_INTERPRET=1 ... --tiny`.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import importlib.util
import itertools
import sys
import time
import traceback
import types
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import torch
from recording import about, quartiles, save
from torch import Tensor, nn

from evofeed.kernels import SwapReport, to_fused
from evofeed.loader import EntryConfig, FeatureLoader, LoaderConfig, openfold3_batch
from evofeed.store import Dataset
from evofeed.trainer.config import OptimConfig
from evofeed.trainer.run.flat import FlatOptimizer

ROOT = Path(__file__).resolve().parent.parent
WAYS = ("fused", "recorded", "project", "cuequivariance")
First = tuple[Any, nn.Module]  # the model and its loss
TIMED = ("wait", "forward", "backward", "optimizer")
PARTS = (
    "input_embedder", "template_embedder", "msa_module", "pairformer_stack", "aux_heads",
    "sample_diffusion",
    "diffusion_module.diffusion_conditioning", "diffusion_module.atom_attn_enc",
    "diffusion_module.diffusion_transformer", "diffusion_module.atom_attn_dec",
)  # fmt: skip


def use_projects(folder: Path) -> None:
    """Makes its packages importable, without two that its model imports and does not call."""
    sys.path.append(str(folder))
    unused: dict[str, dict[str, Any]] = {
        "gemmi": {"__version__": "0"}, "biotite": {}, "biotite.structure": {"AtomArray": object},
    }  # fmt: skip
    for name, values in unused.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(values)


def model_config(options: argparse.Namespace) -> Any:
    """The project's configuration with its training preset."""
    from openfold3.projects.of3_all_atom.config.model_config import model_config as config

    config = copy.deepcopy(config)
    config.settings.blocks_per_ckpt = 1
    config.settings.ckpt_intermediate_steps = True
    config.architecture.loss_module.diffusion.chunk_size = 4
    if options.tiny:
        config.architecture.shared.diffusion.no_samples = 3
        config.architecture.shared.diffusion.no_mini_rollout_steps = 2
        config.architecture.msa.msa_module.no_blocks = 2
        config.architecture.template.template_pair_stack.no_blocks = 1
    config = config.copy_and_resolve_references()
    made = config.architecture
    heads, diffusion = made.heads.pairformer_embedding, made.diffusion_module
    for stack in (made.pairformer, diffusion.diffusion_transformer, heads.pairformer):
        stack.no_blocks = 1
    return config  # `first_model` copies these blocks


def first_model(options: argparse.Namespace) -> First:
    """The model and its loss on the CPU, the same at every call."""
    from openfold3.core.loss.loss_module import OpenFold3Loss
    from openfold3.projects.of3_all_atom.model import OpenFold3

    torch.manual_seed(0)
    config = model_config(options)
    model = OpenFold3(config)
    heads = model.aux_heads.pairformer_embedding.pairformer_stack
    stacks = (model.pairformer_stack, model.diffusion_module.diffusion_transformer, heads)
    for stack, blocks in zip(stacks, (2, 2, 1) if options.tiny else (48, 24, 4), strict=True):
        stack.blocks.extend(copy.deepcopy(stack.blocks[0]) for _ in range(blocks - 1))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and not parameter.any():
                parameter.normal_(std=0.02)
    model.synced_generator = types.SimpleNamespace(integers=lambda **_: options.recycles)
    return model.train(), OpenFold3Loss(config.architecture.loss_module)


def prepared(model: Any, way: str, options: argparse.Namespace) -> Any:
    """A copy on the device, as the way has it."""
    model = copy.deepcopy(model).to(options.device)
    model.settings.memory.train.use_cueq_triangle_kernels = way == "cuequivariance"
    name, _, keep = way.partition(" ")
    if name in ("fused", "recorded"):
        report, graphs = SwapReport(), name == "recorded"
        words: Any = float(keep) if keep[:1].isdigit() else keep or None
        to_fused(model, report, cuda_graphs=graphs, keep=words)
        print(way, len(report.swapped), "swapped", flush=True)
    return model


class ProjectOptimizer:
    """Clipping, Adam and moving average as `OpenFold3AllAtom` does them on one GPU."""

    def __init__(self, model: Any) -> None:
        from openfold3.core.utils.exponential_moving_average import ExponentialMovingAverage
        from openfold3.core.utils.grad_manager import PerSampleGradManager
        from openfold3.core.utils.lr_schedulers import AlphaFoldLRScheduler

        settings = model.settings
        self.model, about = model, settings.optimizer
        self.adam = torch.optim.Adam(
            model.parameters(), lr=about.learning_rate, betas=(about.beta1, about.beta2),
            eps=about.eps,
        )  # fmt: skip
        rates = {"max_lr": about.learning_rate, **settings.lr_scheduler}
        self.rates = AlphaFoldLRScheduler(self.adam, **rates)
        one = types.SimpleNamespace(reduce=lambda tensor, reduce_op: tensor)
        trainer = types.SimpleNamespace(world_size=1, global_step=0, global_rank=0, strategy=one)
        self.clip = PerSampleGradManager(settings.gradient_clipping.clip_val)
        self.clip.setup(model, trainer, None)
        self.average = ExponentialMovingAverage(model, settings.ema.decay)
        self.average.init_params(model)

    def backward(self, loss: Tensor) -> None:
        self.adam.zero_grad()
        loss.backward()

    def step(self) -> None:
        self.clip.clip_and_accumulate({"pdb_id": "", "preferred_chain_or_interface": ""})
        self.clip.sync_and_average_grads()
        self.adam.step()
        self.rates.step()
        self.clip.reset_accumulator()
        self.average.update(self.model)


class FlatSteps:
    """The same by evofeed's flat buffers."""

    def __init__(self, model: Any) -> None:
        about = model.settings.optimizer
        config = OptimConfig(
            learning_rate=about.learning_rate, beta1=about.beta1, beta2=about.beta2, eps=about.eps,
            max_norm=model.settings.gradient_clipping.clip_val, ema_decay=model.settings.ema.decay,
        )  # fmt: skip
        self.flat = FlatOptimizer(model, config, fused=next(model.parameters()).is_cuda)
        self.number = 0

    def backward(self, loss: Tensor) -> None:
        self.flat.zero_grad()
        self.flat.backward(loss)

    def step(self) -> None:
        self.number += 1
        self.flat.step(self.number)


OPTIMIZERS = {"project": ProjectOptimizer, "flat": FlatSteps}


def batches(tokens: int, options: argparse.Namespace) -> Generator[dict[str, Any]]:
    """Batches of one sample, of so many tokens, epoch after epoch."""
    entries = EntryConfig.openfold3(token_budget=tokens, used_rows=options.sequences)
    config = LoaderConfig(entries=entries, max_resolution=float("inf"), epoch_len=1000)
    data = Dataset.open(options.data).entries
    with FeatureLoader(data, config, seed=0, device=options.device) as loader:
        for batch in itertools.chain.from_iterable(itertools.repeat(loader)):
            features = openfold3_batch(batch)
            if features["token_mask"].shape[-1] == tokens:
                yield deepened(features, options.sequences)


def deepened(batch: dict[str, Any], rows: int) -> dict[str, Any]:
    """The alignment's rows again and again, as deep ones are."""
    again = torch.arange(rows, device=batch["msa"].device) % batch["msa"].shape[1]
    names = ("msa", "has_deletion", "deletion_value", "msa_mask")
    return batch | {name: batch[name][:, again] for name in names}


class Step:
    """A model, its loss, its optimizer and its data."""

    def __init__(
        self, first: First, way: str, data: Iterator[dict[str, Any]], options: argparse.Namespace
    ) -> None:
        self.options, self.loss, self.data = options, first[1], data
        self.model = prepared(first[0], way, options)
        self.optimizer: Any = OPTIMIZERS[options.optimizer](self.model)
        self.kept: dict[str, float] = {}
        self.spent: dict[str, float] = {}
        self.apart = False
        for name in PARTS:
            self._watch(name)

    def _watch(self, name: str) -> None:
        """Note what a part keeps, at its last call with gradients, and its time, waited for."""
        before = []

        def now() -> tuple[int, float]:
            if self.apart and self.options.device == "cuda":
                torch.cuda.synchronize()
            return torch.cuda.memory_allocated(), time.perf_counter()

        def enters(*_: Any) -> None:
            before.append(now())

        def leaves(*_: Any) -> None:
            (memory, ended), (then, began) = now(), before.pop()
            if torch.is_grad_enabled():
                self.kept[name] = round((memory - then) / 1e9, 3)
            self.spent[name] = self.spent.get(name, 0.0) + 1e3 * (ended - began)

        module = self.model.get_submodule(name)
        module.register_forward_pre_hook(enters)
        module.register_forward_hook(leaves)

    def run(self, number: int) -> dict[str, float]:
        """Milliseconds of one step's parts, its loss and its number of atoms."""
        times = [time.perf_counter()]

        def mark() -> None:
            if self.options.device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter())

        batch = next(self.data)
        mark()
        torch.manual_seed(number)
        with torch.autocast(self.options.device, torch.bfloat16):
            batch, output = self.model(batch)
            loss = self.loss(batch, output)
        mark()
        self.optimizer.backward(loss)
        mark()
        self.optimizer.step()
        mark()
        spent = [1e3 * (end - start) for start, end in itertools.pairwise(times)]
        return {**dict(zip(TIMED, spent, strict=True)), "step": sum(spent),
                "loss": float(loss.detach()), "atoms": batch["atom_mask"].shape[-1]}  # fmt: skip


def row(first: First, way: str, tokens: int, options: argparse.Namespace) -> dict[str, Any]:
    """One way at one size."""
    with contextlib.closing(batches(tokens, options)) as data:
        step = Step(first, way, data, options)
        for number in range(options.warmup):
            print({name: round(ms, 1) for name, ms in step.run(number).items()}, flush=True)
        if options.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        made = [step.run(options.warmup + number) for number in range(options.steps)]
        step.apart, step.spent = True, {}
        step.run(options.warmup + options.steps)
    found: dict[str, Any] = {
        f"{name}_ms": quartiles([one[name] for one in made]) for name in ("step", *TIMED)
    }
    waited = sum(one["wait"] for one in made)
    found["samples_per_second"] = round(1e3 / found["step_ms"][0], 3)
    found["share_of_waiting"] = round(waited / sum(one["step"] for one in made), 4)
    if options.device == "cuda":
        found["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
        found["kept_gb"] = step.kept
    found["parts_ms"] = {name: round(ms, 1) for name, ms in step.spent.items()}
    return found | {"losses": [round(one["loss"], 4) for one in made],
                    "atoms": [one["atoms"] for one in made]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="prepared entries")
    parser.add_argument("--projects", type=Path, default=ROOT / ".projects")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, nargs="+", default=[384])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--keep", nargs="+", default=["blocks"], help="blocks, all, GB")
    parser.add_argument("--optimizer", default="project", choices=OPTIMIZERS)
    parser.add_argument("--sequences", type=int, default=1024)
    parser.add_argument("--recycles", type=int, default=1, help="passes without gradients before")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start none after")
    parser.add_argument("--tiny", action="store_true", help="2 blocks, 16 tokens, on the CPU")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.tiny:
        options.device, options.tokens, options.sequences = "cpu", [16], 4
        options.warmup, options.steps = 1, 1
    began = time.perf_counter()
    torch.set_float32_matmul_precision("high")
    use_projects(options.projects)
    result: dict[str, Any] = about(
        "torch", "triton", "openfold3", "cuequivariance-ops-torch-cu13", device=options.device
    ) | {"recycles": options.recycles, "sequences": options.sequences, "rows": [], "not_run": []}
    if importlib.util.find_spec("cuequivariance_torch") is None:
        options.ways = [way for way in options.ways if way != "cuequivariance"]
    options.ways = [
        each for way in options.ways
        for each in ([f"{way} {keep}" for keep in options.keep] if way == "recorded" else [way])
    ]  # fmt: skip
    first = first_model(options)
    print(f"model made in {time.perf_counter() - began:.0f} s", flush=True)
    for tokens, way in itertools.product(options.tokens, options.ways):
        if time.perf_counter() - began > options.seconds:
            result["not_run"].append({"tokens": tokens, "how": way})
            continue
        started = time.perf_counter()
        found = {"tokens": tokens, "how": way, "optimizer": options.optimizer}
        try:
            found |= row(first, way, tokens, options)
        except torch.OutOfMemoryError:
            found["failed"] = "out of memory"
        except Exception as error:  # the rows after it are to be measured
            traceback.print_exc()
            found["failed"] = f"{type(error).__name__}: {error}"[:300]
        found["seconds"] = round(time.perf_counter() - started, 1)
        result["rows"].append(found)
        print(found, flush=True)
        if options.out:
            save(options.out, result)
        gc.collect()  # a step's hooks refer to it
        if options.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
