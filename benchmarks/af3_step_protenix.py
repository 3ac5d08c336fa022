"""Protenix's training step, what `AF3Trainer.train_step` does, and its prediction.

Trunk, roll-out of 20 denoising steps, permutation of labels, confidence heads, 48 noised copies in
chunks of 4, all losses; clipping, Adam, moving average, with the rates of its demonstration of
training. The alignment keeps all its rows where its training draws how many; its own code pads
them to 16,384. Templates are none. Its layer norm is PyTorch's: its own is compiled at import, by a
compiler that few machines have. A prediction has the settings of its command, its own Triton kernel
for attention of triangles (but for `plain`), and no dropout, which its command draws for 2 of 5.
"""

from __future__ import annotations

import importlib
import os
import types
from typing import Any

import numpy as np
import torch
from af3_projects import TRUNCATED, Optimizer, Project, deepened, given, repeated, without_zeros
from torch import Tensor
from torch.utils._pytree import tree_leaves

from evofeed.loader import EntryConfig, protenix_batch
from evofeed.trainer.config import OptimConfig

CHANGED = {
    "ema_decay": 0.999, "lr": 0.001, "warmup_steps": 2000, "enable_tf32": True,
    "max_steps": 100_000, "triangle_multiplicative": "torch", "triangle_attention": "torch",
}  # fmt: skip
PREDICTS = {"enable_efficient_fusion": True, "enable_diffusion_shared_vars_cache": True}


class Rotations:
    """Turns as SciPy draws them: from quaternions of equal chance."""

    def __init__(self, quaternions: np.ndarray) -> None:
        self.quaternions = quaternions / np.linalg.norm(quaternions, axis=-1, keepdims=True)

    @classmethod
    def random(cls, num: int) -> Rotations:
        return cls(np.random.standard_normal((num, 4)))

    def as_matrix(self) -> np.ndarray:
        w, v = self.quaternions[:, :1, None], self.quaternions[:, 1:]
        x, y, z = v.T
        o = np.zeros_like(x)
        cross = np.stack([o, -z, y, z, o, -x, -y, x, o], -1).reshape(-1, 3, 3)
        outer = v[:, :, None] * v[:, None]
        made: np.ndarray = (2 * w**2 - 1) * np.eye(3) + 2 * outer + 2 * w * cross
        return made


GIVEN: dict[str, dict[str, Any]] = {
    "optree": {  # called for the sizes of all tensors of a tree
        "tree_map": lambda size, tree: [size(leaf) for leaf in tree_leaves(tree)],
        "tree_flatten": lambda sizes: (sizes, None),
    },
    "rdkit.Chem": {"GetPeriodicTable": lambda: types.SimpleNamespace(GetElementSymbol=str)},
    "scipy.spatial.transform": {"Rotation": Rotations},
    "scipy.stats": TRUNCATED,
}  # fmt: skip


class Protenix(Project):
    """Its base model of 0.5, which has no templates, recomputing every block."""

    unused = ("rdkit", "biotite", "gemmi", "scipy", "optree")
    parts = (
        "input_embedder", "msa_module", "pairformer_stack", "confidence_head", "diffusion_module",
        "diffusion_module.diffusion_conditioning", "diffusion_module.atom_attention_encoder",
        "diffusion_module.diffusion_transformer", "diffusion_module.atom_attention_decoder",
    )  # fmt: skip
    borders = ("pairformer_stack", "distogram_head")

    def _config(self) -> Any:
        from configs.configs_base import configs
        from configs.configs_data import data_configs

        parse = importlib.import_module("protenix.config.config").parse_configs
        made = parse({**configs, "data": data_configs}, arg_str="", fill_required_with_null=True)
        made.update(CHANGED | (PREDICTS if self.options.predicts else {}))
        made.adam.lr = made.af3_lr_scheduler.lr = CHANGED["lr"]
        made.af3_lr_scheduler.warmup_steps = CHANGED["warmup_steps"]
        made.data.msa.min_size.train = made.data.msa.min_size.test = self.options.sequences
        stacks = (made.model.pairformer, made.model.diffusion_module.transformer)
        for stack in (*stacks, made.model.confidence_head):
            stack.n_blocks = 1
        if self.options.tiny:
            made.diffusion_batch_size, made.diffusion_chunk_size = 3, 2
            made.sample_diffusion.N_step_mini_rollout = 2
            made.model.msa_module.n_blocks = 2
            rows = self.options.sequences
            made.model.msa_module.msa_max_size = made.data.msa.sample_cutoff.train = rows
        return made

    def first(self) -> Any:
        os.environ.setdefault("LAYERNORM_TYPE", "torch")
        given(GIVEN)
        own = importlib.import_module("protenix.model.protenix")
        losses = importlib.import_module("protenix.model.loss").ProtenixLoss
        torch.manual_seed(0)
        self.config, tiny = self._config(), self.options.tiny
        cycles = types.SimpleNamespace(randint=lambda least, beyond: self.options.recycles + 1)
        vars(own)["np"] = types.SimpleNamespace(
            random=types.SimpleNamespace(RandomState=lambda step: cycles)
        )
        model = own.Protenix(self.config)
        self.losses = losses(self.config)
        self.permutation = own.SymmetricPermutation(self.config)
        self.amp = importlib.import_module("protenix.utils.torch_utils")
        repeated({
            model.pairformer_stack.blocks: 2 if tiny else 48,
            model.diffusion_module.diffusion_transformer.blocks: 2 if tiny else 24,
            model.confidence_head.pairformer_stack.blocks: 1 if tiny else 4,
        })  # fmt: skip
        return without_zeros(model)

    def switch(self, model: Any, way: str) -> None:
        how = "cuequivariance" if way.startswith("cuequivariance") else "torch"
        model.configs.triangle_multiplicative = model.configs.triangle_attention = how
        if self.options.predicts and how == "torch" and way != "plain":
            model.configs.triangle_attention = "triattention"

    def entries(self, tokens: int) -> EntryConfig:
        return EntryConfig.protenix(crop_size=tokens, max_rows=self.options.sequences)

    def batch(self, loaded: dict[str, Any], tokens: int) -> dict[str, Any] | None:
        batch = protenix_batch(loaded)
        features = batch["input_feature_dict"]
        names = ("msa", "has_deletion", "deletion_value")
        deepened(features, names, self.options.sequences, features["msa"].shape[0], 0)
        return batch if features["token_index"].shape[0] == tokens else None

    def loss(self, model: Any, batch: dict[str, Any]) -> Tensor:
        features = batch["input_feature_dict"]
        predicted, label, _ = model(
            input_feature_dict=features, label_dict=batch["label_dict"],
            label_full_dict=batch["label_full_dict"], mode="train", current_step=0,
            symmetric_permutation=self.permutation, mc_dropout_apply_rate=0,
        )  # fmt: skip
        losses = self.amp.autocasting_disable_decorator(self.config.skip_amp.loss)(self.losses)
        loss: Tensor = losses(
            feat_dict=features, pred_dict=predicted, label_dict=label, mode="train"
        )[0]
        return loss

    def predict(self, model: Any, batch: dict[str, Any], recycles: int, steps: int) -> Tensor:
        model.N_cycle, sampling = recycles + 1, model.configs.sample_diffusion
        sampling.N_step, sampling.N_sample = steps, self.options.samples
        made: Tensor = model(
            input_feature_dict=dict(batch["input_feature_dict"]), label_dict=None,
            label_full_dict=None, mode="inference", mc_dropout_apply_rate=0,
        )[0]["coordinate"]  # fmt: skip
        return made

    def optimizer(self, model: Any) -> Optimizer:
        return ProtenixOptimizer(model, self.config)

    def rates(self, model: Any) -> OptimConfig:
        adam, rates = self.config.adam, self.config.af3_lr_scheduler
        return OptimConfig(
            learning_rate=adam.lr, warmup_steps=rates.warmup_steps, beta1=adam.beta1,
            beta2=adam.beta2, eps=1e-8, max_norm=self.config.grad_clip_norm,
            ema_decay=self.config.ema_decay,
        )  # fmt: skip


class ProtenixOptimizer(Optimizer):
    """As `AF3Trainer` has it."""

    def __init__(self, model: Any, config: Any) -> None:
        made = importlib.import_module("protenix.utils.training").get_optimizer
        rates = importlib.import_module("protenix.utils.lr_scheduler").get_lr_scheduler
        adam = made(config, model, config.finetune_params_with_substring)
        super().__init__(model, adam, rates(config, adam), config.grad_clip_norm)
        average = importlib.import_module("runner.ema").EMAWrapper
        self.shadow = average(model, config.ema_decay, config.ema_mutable_param_keywords)
        self.shadow.register()

    def average(self) -> None:
        self.shadow.update()
