"""The trunks of Boltz-2, OpenFold3 and Protenix from their own installed packages.

A trunk is a project's MSA module and its Pairformer stack with the widths, numbers of blocks and
dropout of its own defaults, called as its model calls them. What is before (embedders, templates)
and after (diffusion, confidence) is not here. Nothing of evofeed is imported.
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

C_S, C_Z, C_M = 384, 128, 64
C_INPUTS = {"boltz2": 384, "openfold3": 449, "protenix": 449}
BLOCKS = {"boltz2": 64, "openfold3": 48, "protenix": 48}


@dataclass
class Inputs:
    """What a trunk is called with: random numbers, a tenth of the tokens padded."""

    single_inputs: Tensor  # [1, N, C_INPUTS]
    s: Tensor
    z: Tensor
    msa: Tensor  # [1, S, N] of 32 letters
    deletions: Tensor  # [1, S, N]
    mask: Tensor  # [1, N]
    pair_mask: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.pair_mask = self.mask[:, None] * self.mask[:, :, None]


def make_inputs(project: str, tokens: int, sequences: int, device: str) -> Inputs:
    torch.manual_seed(2)
    mask = torch.ones(1, tokens)
    mask[:, tokens - tokens // 10 :] = 0.0
    drawn = (
        torch.randn(1, tokens, C_INPUTS[project]),
        torch.randn(1, tokens, C_S),
        torch.randn(1, tokens, tokens, C_Z),
        torch.randint(0, 32, (1, sequences, tokens)),
        torch.rand(1, sequences, tokens),
        mask,
    )
    return Inputs(*(each.to(device) for each in drawn))


class Trunk(nn.Module):
    """A project's MSA module and Pairformer stack."""

    msa_module: nn.Module
    pairformer: nn.Module


class Boltz2(Trunk):
    """As in `Boltz2.forward`; activation checkpointing as its training configuration has it."""

    def __init__(self, blocks: int, msa_blocks: int, checkpointed: bool, dropout: bool) -> None:
        from boltz.model.layers.pairformer import PairformerModule
        from boltz.model.modules.trunkv2 import MSAModule

        super().__init__()
        drop = float(dropout)
        self.msa_module = MSAModule(
            C_M, C_Z, C_S, msa_blocks, 0.15 * drop, 0.25 * drop,
            activation_checkpointing=checkpointed,
        )  # fmt: skip
        self.pairformer = PairformerModule(
            C_S, C_Z, blocks, dropout=0.25 * drop, activation_checkpointing=checkpointed, v2=True
        )

    def forward(self, x: Inputs) -> tuple[Tensor, Tensor]:
        feats = {
            "msa": x.msa, "has_deletion": (x.deletions > 0.5).float(),
            "deletion_value": x.deletions,
            "msa_paired": torch.zeros_like(x.deletions), "msa_mask": torch.ones_like(x.deletions),
            "token_pad_mask": x.mask,
        }  # fmt: skip
        z = x.z + self.msa_module(x.z, x.single_inputs, feats)
        out: tuple[Tensor, Tensor] = self.pairformer(x.s, z, mask=x.mask, pair_mask=x.pair_mask)
        return out


class OpenFold3(Trunk):
    """As in `OpenFold3.run_trunk`."""

    def __init__(self, blocks: int, msa_blocks: int, checkpointed: bool, dropout: bool) -> None:
        from openfold3.core.model.feature_embedders.input_embedders import MSAModuleEmbedder
        from openfold3.core.model.latent.msa_module import MSAModuleStack
        from openfold3.core.model.latent.pairformer import PairFormerStack
        from openfold3.projects.of3_all_atom.config.model_config import model_config

        super().__init__()
        config = model_config.copy_and_resolve_references().architecture
        common = {"blocks_per_ckpt": 1 if checkpointed else None, "tune_chunk_size": False}
        msa = dict(config.msa.msa_module) | common | {"no_blocks": msa_blocks}
        pairs = dict(config.pairformer) | common | {"no_blocks": blocks}
        if not dropout:
            msa |= {"msa_dropout": 0.0, "pair_dropout": 0.0}
            pairs |= {"pair_dropout": 0.0}
        self.embedder = MSAModuleEmbedder(**config.msa.msa_module_embedder)
        self.msa_module = MSAModuleStack(**msa)
        self.pairformer = PairFormerStack(**pairs)

    def forward(self, x: Inputs) -> tuple[Tensor, Tensor]:
        letters = nn.functional.one_hot(x.msa, 32).to(x.z.dtype)
        features = torch.cat([letters, (x.deletions > 0.5).to(x.z)[..., None],
                              x.deletions[..., None]], -1)  # fmt: skip
        m = self.embedder.linear_m(features)
        m = m + self.embedder.linear_s_input(x.single_inputs)[..., None, :, :]
        rows = torch.ones_like(x.deletions)
        z = self.msa_module(m, x.z, msa_mask=rows, pair_mask=x.pair_mask)
        out: tuple[Tensor, Tensor] = self.pairformer(
            x.s, z, single_mask=x.mask, pair_mask=x.pair_mask
        )
        return out


class Protenix(Trunk):
    """As in `Protenix.get_pairformer_output`: no batch dimension."""

    def __init__(self, blocks: int, msa_blocks: int, checkpointed: bool, dropout: bool) -> None:
        from protenix.model.modules.pairformer import MSAModule, PairformerStack

        super().__init__()
        kept = 1 if checkpointed else None
        drop = float(dropout)
        self.msa_module = MSAModule(
            msa_blocks, C_M, C_Z, C_INPUTS["protenix"], 0.15 * drop, 0.25 * drop, kept,
            msa_configs={"enable": True, "strategy": "topk",
                         "sample_cutoff": {"train": 16384, "test": 16384},
                         "min_size": {"train": 16384, "test": 16384}},  # all, in order
        )  # fmt: skip
        self.pairformer = PairformerStack(blocks, dropout=0.25 * drop, blocks_per_ckpt=kept)

    def forward(self, x: Inputs) -> tuple[Tensor, Tensor]:
        how = {"triangle_multiplicative": "torch", "triangle_attention": "torch"}
        feats = {
            "msa": x.msa[0], "has_deletion": (x.deletions[0] > 0.5).float(),
            "deletion_value": x.deletions[0],
        }  # fmt: skip
        z = self.msa_module(feats, x.z[0], x.single_inputs[0], pair_mask=x.pair_mask[0], **how)
        s, z = self.pairformer(x.s[0], z, x.pair_mask[0], **how)
        return s[None], z[None]


TRUNKS: dict[str, type[Trunk]] = {"boltz2": Boltz2, "openfold3": OpenFold3, "protenix": Protenix}


def build(
    project: str, *, blocks: int | None = None, msa_blocks: int = 4, checkpointed: bool = False,
    dropout: bool = False,
) -> Trunk:  # fmt: skip
    """A trunk with random weights, the same at every call.

    One block of the Pairformer is made and copied: the projects' own first weights take a second
    a block.

    Args:
        project: whose.
        blocks, msa_blocks: how many of the Pairformer and of the MSA module.
        checkpointed: whether each block is an activation checkpoint.
        dropout: the rates of the project, or 0 if False.
    """
    os.environ.setdefault("LAYERNORM_TYPE", "torch")  # Protenix's other one is compiled at import
    blocks = BLOCKS[project] if blocks is None else blocks
    trunk = TRUNKS[project](1, msa_blocks, checkpointed, dropout)
    stack: Any = trunk.pairformer
    same = stack.layers if hasattr(stack, "layers") else stack.blocks
    same.extend(copy.deepcopy(same[0]) for _ in range(blocks - 1))
    torch.manual_seed(1)
    for parameter in trunk.parameters():  # matrices random, norms and gates' biases one, others 0
        with torch.no_grad():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5)
            else:
                parameter.copy_((parameter == 1.0).float())
    return trunk
