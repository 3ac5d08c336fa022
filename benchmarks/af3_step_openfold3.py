"""OpenFold3's training step, what `OpenFold3AllAtom.training_step` does, and its prediction.

Trunk, roll-out of 20 denoising steps, permutation of labels, 48 noised copies, confidence heads,
all losses; per-sample clipping, Adam, moving average. Its metrics are left out. A prediction has
the settings of its preset `predict`: its own Triton kernels (not in `plain`), chunks that it tunes.
"""

from __future__ import annotations

import copy
import types
from typing import Any

import torch
from af3_projects import Optimizer, Project, deepened, repeated, without_zeros
from torch import Tensor

from evofeed.loader import EntryConfig, openfold3_batch
from evofeed.trainer.config import OptimConfig


class OpenFold3(Project):
    """With its training preset, which recomputes every block."""

    unused = ("gemmi", "biotite")
    parts = (
        "input_embedder", "template_embedder", "msa_module", "pairformer_stack", "aux_heads",
        "sample_diffusion",
        "diffusion_module.diffusion_conditioning", "diffusion_module.atom_attn_enc",
        "diffusion_module.diffusion_transformer", "diffusion_module.atom_attn_dec",
    )  # fmt: skip
    borders = ("pairformer_stack", "aux_heads")

    def _config(self) -> Any:
        from openfold3.projects.of3_all_atom.config.model_config import model_config as config

        config = copy.deepcopy(config)
        config.settings.blocks_per_ckpt = 1
        config.settings.ckpt_intermediate_steps = True
        config.settings.memory.eval.chunk_size = 1024
        config.architecture.loss_module.diffusion.chunk_size = 4
        if self.options.tiny:
            config.architecture.shared.diffusion.no_samples = 3
            config.architecture.shared.diffusion.no_mini_rollout_steps = 2
            config.architecture.msa.msa_module.no_blocks = 2
            config.architecture.template.template_pair_stack.no_blocks = 1
        config = config.copy_and_resolve_references()
        made = config.architecture
        heads, diffusion = made.heads.pairformer_embedding, made.diffusion_module
        for stack in (made.pairformer, diffusion.diffusion_transformer, heads.pairformer):
            stack.no_blocks = 1
        return config

    def first(self) -> Any:
        from openfold3.core.loss.loss_module import OpenFold3Loss
        from openfold3.projects.of3_all_atom.model import OpenFold3

        torch.manual_seed(0)
        config, tiny = self._config(), self.options.tiny
        model = OpenFold3(config)
        heads = model.aux_heads.pairformer_embedding.pairformer_stack
        repeated({
            model.pairformer_stack.blocks: 2 if tiny else 48,
            model.diffusion_module.diffusion_transformer.blocks: 2 if tiny else 24,
            heads.blocks: 1 if tiny else 4,
        })  # fmt: skip
        self.losses = OpenFold3Loss(config.architecture.loss_module)
        recycles = self.options.recycles
        model.synced_generator = types.SimpleNamespace(integers=lambda **_: recycles)
        return without_zeros(model)

    def switch(self, model: Any, way: str) -> None:
        memory, library = model.settings.memory, way.startswith("cuequivariance")
        memory.train.use_cueq_triangle_kernels = memory.eval.use_cueq_triangle_kernels = library
        others = library or way == "plain" or self.options.device == "cpu"
        memory.eval.use_triton_triangle_kernels = not others

    def entries(self, tokens: int) -> EntryConfig:
        return EntryConfig.openfold3(token_budget=tokens, used_rows=self.options.sequences)

    def batch(self, loaded: dict[str, Any], tokens: int) -> dict[str, Any] | None:
        batch = openfold3_batch(loaded)
        names = ("msa", "has_deletion", "deletion_value", "msa_mask")
        deepened(batch, names, self.options.sequences, batch["msa"].shape[1], 1)
        return batch if int(batch["token_mask"].sum()) == tokens else None  # the rest is padding

    def loss(self, model: Any, batch: dict[str, Any]) -> Tensor:
        batch, output = model(batch)
        return self.losses(batch, output)  # type: ignore[no-any-return]

    def predict(self, model: Any, batch: dict[str, Any], recycles: int, steps: int) -> Tensor:
        model.shared.num_recycles, diffusion = recycles, model.shared.diffusion
        diffusion.no_full_rollout_steps = steps
        diffusion.no_full_rollout_samples = self.options.samples
        inputs = {name: value for name, value in batch.items() if name != "ground_truth"}
        made: Tensor = model(inputs)[1]["atom_positions_predicted"][0]
        return made[:, batch["atom_mask"][0].bool()]

    def optimizer(self, model: Any) -> Optimizer:
        return OpenFold3Optimizer(model)

    def rates(self, model: Any) -> OptimConfig:
        about, rates = model.settings.optimizer, model.settings.lr_scheduler
        return OptimConfig(
            learning_rate=about.learning_rate, warmup_steps=rates.warmup_no_steps,
            beta1=about.beta1, beta2=about.beta2, eps=about.eps,
            max_norm=model.settings.gradient_clipping.clip_val, ema_decay=model.settings.ema.decay,
        )  # fmt: skip


class OpenFold3Optimizer(Optimizer):
    """As `OpenFold3AllAtom` has it on one GPU: each sample's gradient is clipped."""

    def __init__(self, model: Any) -> None:
        from openfold3.core.utils.exponential_moving_average import ExponentialMovingAverage
        from openfold3.core.utils.grad_manager import PerSampleGradManager
        from openfold3.core.utils.lr_schedulers import AlphaFoldLRScheduler

        settings = model.settings
        about, clip = settings.optimizer, settings.gradient_clipping.clip_val
        adam = torch.optim.Adam(
            model.parameters(), lr=about.learning_rate, betas=(about.beta1, about.beta2),
            eps=about.eps,
        )  # fmt: skip
        rates = {"max_lr": about.learning_rate, **settings.lr_scheduler}
        super().__init__(model, adam, AlphaFoldLRScheduler(adam, **rates), clip)
        one = types.SimpleNamespace(reduce=lambda tensor, reduce_op: tensor)
        trainer = types.SimpleNamespace(world_size=1, global_step=0, global_rank=0, strategy=one)
        self.manager = PerSampleGradManager(clip)
        self.manager.setup(model, trainer, None)
        self.shadow = ExponentialMovingAverage(model, settings.ema.decay)
        self.shadow.init_params(model)

    def clip(self) -> None:
        self.manager.clip_and_accumulate({"pdb_id": "", "preferred_chain_or_interface": ""})
        self.manager.sync_and_average_grads()

    def average(self) -> None:
        self.manager.reset_accumulator()
        self.shadow.update(self.model)
