"""Boltz-1's training step, what `Boltz1.training_step` does, and its prediction.

Boltz-1 is the one whose data and training are published whole, and whose batches evofeed's loader
gives. Widths, dropout and the rest are of its `structure.yaml`: trunk, 16 noised copies, diffusion
and distogram losses; clipping, Adam, moving average. There is no roll-out and no confidence in it,
and it trains in float32 (`--precision float32`). What a step logs, norms of all gradients among it,
is left out. A prediction is that of its published weights with confidence, which comes from a trunk
of its own. It predicts in float32 alone: its sampler writes what a step gives into float32.
"""

from __future__ import annotations

import importlib
import types
from typing import Any

import torch
from af3_projects import (
    TRUNCATED,
    Optimizer,
    Project,
    Settings,
    deepened,
    given,
    repeated,
    without_zeros,
)
from torch import Tensor, nn

from evofeed.loader import EntryConfig, boltz_batch
from evofeed.trainer.config import OptimConfig

MAX_NORM = 10.0
ATOMS_A_TOKEN = 9
TRAINING = Settings(
    sampling_steps=20, diffusion_multiplicity=16, diffusion_samples=2,
    confidence_loss_weight=1e-4, diffusion_loss_weight=4.0, distogram_loss_weight=3e-2,
    symmetry_correction=False, adam_beta_1=0.9, adam_beta_2=0.95, adam_eps=1e-8,
    lr_scheduler="af3", base_lr=0.0, max_lr=0.0018, lr_warmup_no_steps=1000,
    lr_start_decay_after_n_steps=50_000, lr_decay_every_n_steps=50_000, lr_decay_factor=0.95,
)  # fmt: skip
MODEL: dict[str, Any] = {
    "atom_s": 128, "atom_z": 16, "token_s": 384, "token_z": 128, "num_bins": 64,
    "atom_feature_dim": 389, "ema": True, "ema_decay": 0.999, "validation_args": Settings(),
    "embedder_args": {"atom_encoder_depth": 3, "atom_encoder_heads": 4},
    "msa_args": {"msa_s": 64, "msa_blocks": 4, "msa_dropout": 0.15, "z_dropout": 0.25},
    "pairformer_args": {"num_blocks": 1, "num_heads": 16, "dropout": 0.25},
    "score_model_args": {
        "sigma_data": 16, "dim_fourier": 256, "atom_encoder_depth": 3, "atom_encoder_heads": 4,
        "token_transformer_depth": 1, "token_transformer_heads": 16, "atom_decoder_depth": 3,
        "atom_decoder_heads": 4, "conditioning_transition_layers": 2,
    },
    "confidence_model_args": {
        "num_dist_bins": 64, "max_dist": 22, "add_s_to_z_prod": True, "add_s_input_to_s": True,
        "use_s_diffusion": True, "add_z_input_to_z": True,
        "confidence_args": {"num_plddt_bins": 50, "num_pde_bins": 64, "num_pae_bins": 64},
    },
    "diffusion_process_args": {
        "sigma_min": 0.0004, "sigma_max": 160.0, "sigma_data": 16.0, "rho": 7, "P_mean": -1.2,
        "P_std": 1.5, "gamma_0": 0.8, "gamma_min": 1.0, "noise_scale": 1.0, "step_scale": 1.0,
        "coordinate_augmentation": True, "alignment_reverse_diff": True,
        "synchronize_sigmas": True, "use_inference_model_cache": True,
    },
    "diffusion_loss_args": {
        "add_smooth_lddt_loss": True, "nucleotide_loss_weight": 5.0, "ligand_loss_weight": 10.0,
    },
}  # fmt: skip


CONFIDENCE: dict[str, Any] = {
    "confidence_prediction": True, "confidence_imitate_trunk": True, "alpha_pae": 1.0,
    "diffusion_process_args": MODEL["diffusion_process_args"] | {
        "gamma_0": 0.605, "gamma_min": 1.107, "noise_scale": 0.901, "rho": 8, "step_scale": 1.638,
    },
}  # fmt: skip


class Boltz(Project):
    """Recomputing every block of its stacks, as its configuration has it."""

    unused = (
        "rdkit", "pytorch_lightning", "torchmetrics", "mashumaro", "gemmi", "scipy", "sklearn",
        "einx",
    )  # fmt: skip
    parts = (
        "input_embedder", "msa_module", "pairformer_module", "structure_module.score_model",
        "structure_module.score_model.atom_attention_encoder",
        "structure_module.score_model.token_transformer",
        "structure_module.score_model.atom_attention_decoder",
    )  # fmt: skip
    borders = ("pairformer_module", "confidence_module")

    def first(self) -> Any:
        given({
            "pytorch_lightning": {"LightningModule": Logging},
            "torchmetrics": {"MeanMetric": Logging}, "scipy.stats": TRUNCATED,
        })  # fmt: skip
        own = importlib.import_module("boltz.model.models.boltz1")
        torch.manual_seed(0)
        tiny, predicts = self.options.tiny, self.options.predicts
        steps = Settings(recycling_steps=self.options.recycles, **TRAINING)
        if tiny:
            steps |= {"diffusion_multiplicity": 3, "sampling_steps": 2}
        made = MODEL | {"msa_args": MODEL["msa_args"] | ({"msa_blocks": 2} if tiny else {})}
        made |= CONFIDENCE if predicts else {}
        vars(own)["random"] = types.SimpleNamespace(randint=lambda least, most: most)
        model = own.Boltz1(**made, training_args=steps)
        model.training_log = lambda: None
        trunks = [model, model.confidence_module] if predicts else [model]
        repeated({
            model.structure_module.score_model.token_transformer.layers: 2 if tiny else 24,
            **{trunk.pairformer_module.layers: 2 if tiny else 48 for trunk in trunks},
        })  # fmt: skip
        return without_zeros(model)

    def switch(self, model: Any, way: str) -> None:
        from fairscale.nn.checkpoint.checkpoint_activations import checkpoint_wrapper

        model.use_kernels = way.startswith("cuequivariance")
        if self.options.predicts:
            return
        inner = model.structure_module.score_model.modules()
        tokens = [one for one in inner if type(one).__name__.endswith("TransformerLayer")]
        for block in (*model.msa_module.layers, *model.pairformer_module.layers, *tokens):
            checkpoint_wrapper(block)  # here: a copy of a wrapped block would call the first one

    def entries(self, tokens: int) -> EntryConfig:
        atoms = -(-tokens * ATOMS_A_TOKEN // 32) * 32
        rows = self.options.sequences
        return EntryConfig.boltz(max_tokens=tokens, max_atoms=atoms, max_seqs=rows)

    def batch(self, loaded: dict[str, Any], tokens: int) -> dict[str, Any] | None:
        batch = boltz_batch(loaded)
        names = ("msa", "msa_paired", "has_deletion", "deletion_value", "msa_mask")
        drawn = int(batch["msa_mask"].any(-1).sum())
        deepened(batch, names, self.options.sequences, drawn, 1)
        whole = int(batch["token_pad_mask"].sum()) >= 0.9 * tokens  # crops by neighbourhoods
        return batch if whole else None

    def loss(self, model: Any, batch: dict[str, Any]) -> Tensor:
        return model.training_step(batch, 0)  # type: ignore[no-any-return]

    def predict(self, model: Any, batch: dict[str, Any], recycles: int, steps: int) -> Tensor:
        samples = self.options.samples
        made: Tensor = model(
            batch, recycling_steps=recycles, num_sampling_steps=steps, diffusion_samples=samples,
            max_parallel_samples=samples, run_confidence_sequentially=True,
        )["sample_atom_coords"]  # fmt: skip
        return made[:, batch["atom_pad_mask"][0].bool()]

    def optimizer(self, model: Any) -> Optimizer:
        return BoltzOptimizer(model)

    def rates(self, model: Any) -> OptimConfig:
        steps = model.training_args
        return OptimConfig(
            learning_rate=steps.max_lr, warmup_steps=steps.lr_warmup_no_steps,
            beta1=steps.adam_beta_1, beta2=steps.adam_beta_2, eps=steps.adam_eps,
            max_norm=MAX_NORM, ema_decay=model.ema_decay,
        )  # fmt: skip


class Logging(nn.Module):
    """A module of Lightning's, or a metric, that logs nothing."""

    device = property(lambda self: next(self.parameters()).device)

    def save_hyperparameters(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    log = update = save_hyperparameters


class BoltzOptimizer(Optimizer):
    """As Lightning calls them."""

    def __init__(self, model: Any) -> None:
        (adam,), (rates,) = model.configure_optimizers()
        super().__init__(model, adam, rates["scheduler"], MAX_NORM)
        model.on_train_start()

    def average(self) -> None:
        self.model.on_train_batch_end(None, None, 0)
