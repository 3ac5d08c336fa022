"""Every operator with the cases of its folder, against its reference in plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.weights import Check, check_passed_on

from evofeed.kernels import layer_norm, reference
from evofeed.kernels.ops.adaptive_norm.op import adaptive_norm_fits
from evofeed.kernels.ops.adaptive_norm.reference import AdaptiveWeights
from evofeed.kernels.ops.conditioned_attention import op as attention_of_tokens
from evofeed.kernels.ops.outer_product_mean.op import outer_product_mean_with_input
from evofeed.kernels.ops.pair_bias.op import pair_bias_with_input
from evofeed.kernels.runtime.cases import Draw, declared

pytestmark = pytest.mark.gpu

ALL = [
    (name, case, precise)
    for name, o in declared().items()
    for case in (*o.cases, *o.wide)
    for precise in (True, False)
    # interpreted, 16 bits of the case that is declared last: it has most of what may be given
    if precise or torch.cuda.is_available() or case == [*o.cases][-1]
]


@pytest.mark.parametrize(("operator", "case", "precise"), ALL)
def test_it_is_as_exact_as_pytorch(
    operator: str, case: str, precise: bool, half: torch.dtype, device: str, three_way: Check
) -> None:
    """Results, and the gradients of all inputs and weights."""
    it = declared()[operator]
    residues = 5 if device == "cpu" and case in it.wide else 11  # both fill a part of a tile
    draw = Draw(5, residues, device, torch.float32 if precise else half)
    made = {**it.cases, **it.wide}[case](draw)
    inputs = [*made.tensors.values()]
    three_way(made.call(it.op), made.call(it.reference), inputs, range(len(inputs)))


@pytest.mark.parametrize("used", [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize(
    ("operator", "case", "with_input"),
    [
        ("outer_product_mean", "plain", outer_product_mean_with_input),
        ("pair_bias", "four heads", pair_bias_with_input),
    ],
)
def test_what_is_passed_on_brings_its_gradient_back(
    operator: str, case: str, with_input: Check, used: tuple[float, float], device: str
) -> None:
    it = declared()[operator]
    made = it.cases[case](Draw(3, 5, device))
    x, *weights = made.tensors.values()
    check_passed_on(
        x, lambda x: made.call(it.op)(x, *weights),
        lambda x: made.call(with_input)(x, *weights), used,
    )  # fmt: skip


@pytest.mark.parametrize("operator", ["attention", "global_attention", "layer_norm"])
def test_two_runs_give_equal_bits(operator: str, half: torch.dtype, device: str) -> None:
    """Of several programs that add to the same gradients."""
    it = declared()[operator]
    made = next(iter(it.cases.values()))(Draw(9, 40, device, half))
    leaves = [t.requires_grad_() for t in made.tensors.values()]
    runs = []
    for _ in range(2):
        out = made.call(it.op)(*leaves)
        runs.append([out, *torch.autograd.grad(out.float().sin().sum(), leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_sizes_and_addresses_that_triton_compiles_apart_are_not_mixed_up(device: str) -> None:
    """Of launches that are repeated as they were: one row, odd addresses, other types."""
    memory, weight = torch.randn(20 * 16 + 1, device=device), torch.ones(16, device=device)
    for _ in range(3):
        for rows, first, dtype in (
            (16, 0, torch.float32), (17, 1, torch.float32), (1, 0, torch.float32),
            (16, 1, torch.float16), (16, 0, torch.float16), (1, 1, torch.float32),
        ):  # fmt: skip
            x = memory.to(dtype)[first:][: rows * 16].view(rows, 16)
            found = layer_norm(x, weight, weight)
            torch.testing.assert_close(found, reference.layer_norm(x, weight, weight))


def test_one_s_for_several_rows_is_computed_by_pytorch(device: str) -> None:
    it = declared()["adaptive_norm"]
    made = it.cases["plain"](Draw(3, 5, device))
    a, s, *weights = made.tensors.values()
    assert adaptive_norm_fits(a, s, AdaptiveWeights(*weights))
    given = [a, s[:1], *weights]
    assert not adaptive_norm_fits(a, s[:1], AdaptiveWeights(*weights))
    assert torch.equal(made.call(it.op)(*given), made.call(it.reference)(*given))


def test_under_autocast_it_works_in_autocasts_type(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it, taken = declared()["conditioned_attention"], list[object]()
    made = it.cases["plain"](Draw(3, 17, device))
    operator = attention_of_tokens._ConditionedAttention
    original = operator.apply

    def noted(options: tuple[object, ...], *tensors: torch.Tensor | None) -> torch.Tensor:
        taken.append(options[-1])
        return original(options, *tensors)

    monkeypatch.setattr(operator, "apply", noted)
    with torch.autocast(device, torch.float16):
        out = made.call(it.op)(*made.tensors.values())
    assert taken == [torch.float16] and out.dtype is torch.float32
