"""Weights of other programs come in, and ours go out, under every name they ever had."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from evofeed.base.errors import CheckpointError
from evofeed.trainer import AlphaFold, tiny
from evofeed.trainer.formats.alphafold_params import alphafold_params, load_alphafold_params
from evofeed.trainer.formats.openfold_checkpoint import (
    load_openfold_checkpoint,
    save_openfold_checkpoint,
)

CONFIG = replace(tiny().model, tm_bins=64)


@pytest.fixture(scope="module")
def trained() -> AlphaFold:
    """A model whose every weight differs from every other."""
    torch.manual_seed(0)
    model = AlphaFold(CONFIG)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def _same(a: AlphaFold, b: AlphaFold) -> bool:
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def _names_before_multimer(state: dict[str, Tensor]) -> dict[str, Tensor]:
    old = {}
    for name, value in state.items():
        name = name.replace("template_embedder.template_", "template_")
        name = name.replace("template_single_embedder", "template_angle_embedder")
        name = re.sub(r"blocks\.(\d+)\.pair_stack\.", r"blocks.\1.core.", name)
        if "template" not in name:
            name = re.sub(r"\.(msa_transition|outer_product_mean)\.", r".core.\1.", name)
        old[name.replace("_points.linear.", "_points.")] = value
    return old


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".npz"])
def test_what_is_written_is_read_back_bit_for_bit(
    trained: AlphaFold, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"weights{suffix}"
    save_openfold_checkpoint(trained, path)
    model = AlphaFold(CONFIG)
    assert not _same(trained, model)
    load_openfold_checkpoint(model, path)
    assert _same(trained, model)


@pytest.mark.parametrize("wrapped", ["plain", "old", "lightning", "lightning_ema", "deepspeed"])
def test_every_layout_openfold_has_written_is_understood(
    trained: AlphaFold, tmp_path: Path, wrapped: str
) -> None:
    state = dict(trained.state_dict())
    zeros = {name: torch.zeros_like(value) for name, value in state.items()}
    with_prefix = {f"model.{name}": value for name, value in state.items()}
    file = {
        "plain": state,
        "old": _names_before_multimer(state),
        "lightning": {"state_dict": with_prefix, "epoch": 3},
        "lightning_ema": {"state_dict": zeros, "ema": {"params": state, "decay": 0.999}},
        "deepspeed": {"module": {f"module.{k}": v for k, v in with_prefix.items()}},
    }[wrapped]
    torch.save(file, tmp_path / "checkpoint.ckpt")
    model = AlphaFold(CONFIG)
    load_openfold_checkpoint(model, tmp_path / "checkpoint.ckpt")
    assert _same(trained, model)


def test_af2_arrays_have_af2s_shapes_and_meaning(trained: AlphaFold) -> None:
    arrays = alphafold_params(trained)
    scope = "alphafold/alphafold_iteration/evoformer/evoformer_iteration/"
    query_w = arrays[f"{scope}msa_row_attention_with_pair_bias/attention//query_w"][1]
    attention = trained.evoformer.blocks[1].msa_att_row.mha
    c_m, heads, width = CONFIG.c_m, attention.no_heads, attention.c_hidden
    assert query_w.shape == (c_m, heads, width)
    x = torch.randn(3, c_m)
    ours = attention.linear_q(x).detach().numpy().reshape(3, heads, width)
    assert np.allclose(np.einsum("qa,ahc->qhc", x.numpy(), query_w), ours, rtol=1e-4, atol=1e-5)
    output_w = arrays[f"{scope}outer_product_mean//output_w"][0]
    outer = torch.randn(8, 8)
    opm = trained.evoformer.blocks[0].outer_product_mean.linear_out
    theirs = np.einsum("ce,cef->f", outer.numpy(), output_w) + opm.bias.detach().numpy()
    assert np.allclose(theirs, opm(outer.flatten()).detach().numpy(), rtol=1e-3, atol=1e-4)


def test_arrays_without_a_parameter_are_listed_and_missing_ones_refused(
    trained: AlphaFold, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrays = alphafold_params(trained)
    unused = load_alphafold_params(AlphaFold(replace(CONFIG, tm_bins=None)), arrays)
    assert [name.rsplit("/", 1)[1] for name in unused] == ["bias", "weights"]
    save_openfold_checkpoint(trained, tmp_path / "ptm.npz")
    load_openfold_checkpoint(AlphaFold(replace(CONFIG, tm_bins=None)), tmp_path / "ptm.npz")
    assert f"no parameter for 2 arrays, {unused[0]} first" in caplog.text
    missing = dict(arrays)
    del missing[unused[0]]
    with pytest.raises(CheckpointError, match="predicted_aligned_error_head"):
        load_alphafold_params(AlphaFold(CONFIG), missing)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("evoformer.linear.bias"), "missing: 1 parameters, evoformer"),
        (lambda state: state.update(extra=torch.ones(1)), "unexpected: 1 parameters, extra"),
        (
            lambda state: state.update({"evoformer.linear.bias": torch.ones(1)}),
            "of other shapes: 1 parameters, evoformer.linear.bias",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(
    trained: AlphaFold, tmp_path: Path, change, message: str
) -> None:  # type: ignore[no-untyped-def]
    state = dict(trained.state_dict())
    change(state)
    torch.save(state, tmp_path / "wrong.pt")
    with pytest.raises(CheckpointError, match=message) as caught:
        load_openfold_checkpoint(AlphaFold(CONFIG), tmp_path / "wrong.pt")
    assert str(tmp_path) in str(caught.value)


def test_an_unreadable_file_gives_one_typed_error(trained: AlphaFold, tmp_path: Path) -> None:
    for name in ("no.pt", "torn.pt", "hello.pt", "torn.safetensors", "torn.npz"):
        if name != "no.pt":  # torch reads the first letters of a text as commands
            (tmp_path / name).write_text(f"{name} is not a checkpoint")
        with pytest.raises(CheckpointError):
            load_openfold_checkpoint(trained, tmp_path / name)
    with pytest.raises(ValueError, match=r"weights\.txt must end in"):
        save_openfold_checkpoint(trained, tmp_path / "weights.txt")
