"""Boltz-2's sampling with recorded steps returns the atoms of its eager steps."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest
import torch
from tests.conftest import own_packages
from tests.kernels.weights import randomised
from torch import Tensor
from torch.nn.functional import one_hot

from evofeed.kernels import to_fused
from evofeed.kernels.graphs import recorded
from evofeed.kernels.graphs.evaluation import EAGER_CALLS
from evofeed.kernels.runtime.backend import plain_versions

TOKENS, ATOMS, S, Z = 12, 64, 16, 8
STEPS = EAGER_CALLS + 3
CONDITIONS = ("q", "c", "to_keys", "atom_enc_bias", "atom_dec_bias", "token_trans_bias")
STEERING = ("fk_steering", "physical_guidance_update", "contact_guidance_update")


def _sample(diffusion: Any, conditioning: Any) -> Tensor:
    """Atoms of one prediction, of a batch and noise of its own that the seed decides."""
    s, z = torch.randn(1, TOKENS, S), torch.randn(1, TOKENS, TOKENS, Z)
    of_token = torch.arange(ATOMS) * TOKENS // ATOMS
    batch = {
        "ref_pos": torch.randn(1, ATOMS, 3), "ref_charge": torch.zeros(1, ATOMS),
        "ref_element": one_hot(of_token % 5, 128)[None].float(),
        "ref_atom_name_chars": torch.zeros(1, ATOMS, 4, 64), "ref_space_uid": of_token[None],
        "atom_pad_mask": (torch.arange(ATOMS) < ATOMS - 3)[None].float(),
        "atom_to_token": one_hot(of_token, TOKENS)[None].float(),
        "token_pad_mask": torch.ones(1, TOKENS),
    }  # fmt: skip
    made: Tensor = diffusion.sample(
        batch["atom_pad_mask"], num_sampling_steps=STEPS, multiplicity=2,
        steering_args=dict.fromkeys(STEERING, False), s_inputs=s + 1, s_trunk=s, feats=batch,
        diffusion_conditioning=dict(zip(CONDITIONS, conditioning(s, z, z + 1, batch), strict=True)),
    )["sample_atom_coords"]  # fmt: skip
    return made


@pytest.mark.filterwarnings("ignore")  # theirs
def test_atoms_are_those_of_boltz_2s_own_steps(
    graphs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    own_packages(monkeypatch, "boltz")
    inner = importlib.import_module("boltz.model.modules.diffusionv2")
    outer = importlib.import_module("boltz.model.modules.diffusion_conditioning")
    parts = ("atom_encoder", "atom_decoder", "token_transformer")
    sizes = {f"{part}_{what}": n for part in parts for what, n in (("depth", 1), ("heads", 2))}
    sizes |= {"token_s": S, "atom_s": 16}
    diffusion = randomised(inner.AtomDiffusion(sizes).eval())
    conditioning = randomised(
        outer.DiffusionConditioning(**sizes, token_z=Z, atom_z=8, atom_feature_dim=388).eval()
    )
    fused = to_fused(copy.deepcopy(diffusion), cuda_graphs=True)
    for seed in (0, 1):
        torch.manual_seed(seed)
        with torch.no_grad():
            expected = _sample(diffusion, conditioning)
            torch.manual_seed(seed)
            with plain_versions():
                torch.testing.assert_close(
                    _sample(fused, conditioning), expected, rtol=1e-3, atol=1e-3
                )
        assert len(graphs) == (seed + 1) * (STEPS - EAGER_CALLS)
    assert not recorded._warned
