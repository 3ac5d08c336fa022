"""Predictions in chunks on a GPU, in bfloat16 on fused operators, against the same at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.trainer.synthetic_batch import synthetic_batch, synthetic_complex
from torch import Tensor

from evofeed.kernels import to_fused
from evofeed.trainer.model.alphafold import AlphaFold
from evofeed.trainer.model.config import EvoformerConfig
from evofeed.trainer.model.evoformer import PairStack
from evofeed.trainer.parallel import rows
from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.pairs import _multiply
from evofeed.trainer.predict.prediction import prepare_model
from evofeed.trainer.presets import initial_training, multimer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]
LONG_CHAIN = 1 << 20


@pytest.fixture
def little_memory() -> Iterator[Any]:
    """Sets the bytes that a chunk may take; restores them."""
    share = rows.MEMORY_SHARE

    def set_budget(nbytes: int) -> None:
        rows.MEMORY_SHARE = nbytes / torch.cuda.get_device_properties(0).total_memory
        rows._budget.cache_clear()

    yield set_budget
    rows.MEMORY_SHARE = share
    rows._budget.cache_clear()


def _off(ours: Tensor, theirs: Tensor) -> float:
    """Root mean square of the difference over that of the values."""
    difference = (ours.float() - theirs.float()).square().mean()
    return float((difference / theirs.float().square().mean()).sqrt())


@pytest.mark.parametrize("channels", [64, 128])
@pytest.mark.parametrize("outgoing", [True, False], ids=["outgoing", "incoming"])
def test_a_triangle_product_in_chunks_is_as_near_to_float32_as_the_whole(
    channels: int, outgoing: bool, little_memory: Any
) -> None:
    """Chunks of few pairs run other kernels than the full product does."""
    torch.manual_seed(0)
    N = 528
    with torch.device("cuda"), torch.no_grad():
        sizes = EvoformerConfig(c_hidden_mul=channels, c_hidden_pair_att=channels // 4)
        stack = PairStack(sizes, channels).eval()
        for parameter in stack.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        z, mask = torch.randn(1, N, N, channels).bfloat16(), torch.rand(1, N, N).gt(0.1).float()
        name = "tri_mul_out" if outgoing else "tri_mul_in"
        exact = getattr(stack, name)(z.float(), mask)
    module = getattr(to_fused(stack), name)
    axis, results = Axis(group=None, rank=0, size=1, in_place=True), []
    for nbytes in (8 << 30, 16 << 20, 1 << 20):
        little_memory(nbytes)
        overwritten = z.clone()
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            results.append(_multiply(module, overwritten, mask, None, axis))
        assert (results[-1].data_ptr() == overwritten.data_ptr()) == (nbytes < 8 << 30)
    at_once, *chunked = (_off(result.float() - z.float(), exact) for result in results)
    assert at_once < 0.02 and max(chunked) < 1.2 * at_once


@pytest.mark.parametrize("name", ["chain", "complex"])
def test_a_prediction_in_chunks_is_as_near_to_float32_as_at_once(
    name: str, little_memory: Any
) -> None:
    """Both round alike: neither is further than 1.5 times the other."""
    sizes: dict[str, Any] = {"num_res": 200, "num_seq": 32, "num_extra_seq": 64, "num_templates": 3}
    if name == "chain":
        config, batch = initial_training().model, synthetic_batch(**sizes, no_recycling_iters=1)
    else:
        config = multimer().model
        batch = synthetic_complex(**sizes, num_chains=2, no_recycling_iters=1)
    config = replace(
        config,
        evoformer=replace(config.evoformer, no_blocks=2),
        extra_msa=replace(config.extra_msa, no_blocks=1),
    )
    batch = {key: value.cuda() for key, value in batch.items()}
    outputs = {}
    for way in ("float32", "at once", "in chunks"):
        torch.manual_seed(0)
        with torch.device("cuda"), torch.no_grad():
            model = AlphaFold(config).eval()
            for parameter in model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
        if way == "in chunks":
            little_memory(4 << 20)
        if way != "float32":
            prepare_model(model, LONG_CHAIN if way == "in chunks" else 0)
        half = torch.autocast("cuda", torch.bfloat16, enabled=way != "float32")
        with torch.no_grad(), half:
            outputs[way] = model(batch)
    for key in ("pair", "single", "distogram_logits", "plddt"):
        exact = outputs["float32"][key]
        chunked, at_once = (_off(outputs[way][key], exact) for way in ("in chunks", "at once"))
        assert chunked < 1.5 * at_once and at_once < 0.1, key
