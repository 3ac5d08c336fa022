"""`nn.LayerNorm`, `nn.MultiheadAttention` and `nn.LSTM` against PyTorch's own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.kernels.weights import results
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from evofeed import kernels
from evofeed.kernels import to_fused, to_torch
from evofeed.kernels.fused_module import Fused
from evofeed.kernels.runtime import backend
from evofeed.kernels.runtime.tiles import override
from evofeed.kernels.swap.swap import SwapReport

N, L, S, E, H = 3, 5, 7, 16, 4


@pytest.fixture(autouse=True)
def pad_lstms() -> Iterator[None]:
    override("lstm", (8, 4))
    yield
    override("lstm", None)


def _same(plain: nn.Module, fused: nn.Module, *arguments: Any, **options: Any) -> None:
    """Outputs and all gradients of both, on the same arguments."""
    found = []
    for module in (plain, fused):
        leaves = [
            a.detach().clone().requires_grad_(a.is_floating_point()) if isinstance(a, Tensor) else a
            for a in arguments
        ]
        torch.manual_seed(1)
        inputs = [a for a in leaves if isinstance(a, Tensor)]

        def call(*given: Tensor, module: nn.Module = module, leaves: Any = leaves) -> list[Tensor]:
            return list(_tensors(module(*leaves, **options)))

        found.append(results(call, inputs, [*module.parameters()]))
    for theirs, ours in zip(*found, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


def _tensors(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    elif result is not None:
        for part in result:
            yield from _tensors(part)


def _pair(make: Callable[[], nn.Module], device: str) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    plain = make().to(device)
    return plain, to_fused(copy.deepcopy(plain))


def test_on_a_cpu_dropout_behind_attention_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.interpreted, "depth", 0)
    plain = nn.TransformerEncoderLayer(E, H, 2 * E, dropout=0.3, batch_first=True).train()
    fused, x = to_fused(copy.deepcopy(plain)), torch.randn(N, S, E)
    assert isinstance(fused.self_attn, Fused)
    found = []
    for module in (plain, fused):
        torch.manual_seed(0)
        out = module(x)
        found.append((out, *torch.autograd.grad(out.square().sum(), [*module.parameters()])))
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


ATTENTION: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    *(({"batch_first": first, "bias": bias}, inputs, {"need_weights": False})
      for first, bias, inputs in (
        (True, True, "self"), (False, False, "self"), (True, False, "memory"),
        (False, True, "memory"), (False, True, "three"),
      )),
    *(({}, "memory", {"need_weights": False, "masks": masks})
      for masks in (
        (torch.bool, True, True), (torch.bool, False, False), (torch.float32, True, False),
        (torch.float32, False, True),
      )),
    ({}, "self", {"need_weights": False, "is_causal": True}),
    *(({}, "self", {"average_attn_weights": average}) for average in (True, False)),
    *(({option: True}, "self", {"need_weights": False})
      for option in ("add_bias_kv", "add_zero_attn")),
    ({"kdim": 6, "vdim": 10}, "widths", {"need_weights": False}),
]  # fmt: skip
"""Options of a module, where its keys and values are from, and how it is called; masks: their
type, whether each head has its own, and whether keys are filled up."""


def _masks(kind: torch.dtype, per_head: bool, padded: bool) -> dict[str, Tensor]:
    mask = torch.rand((N * H, L, S) if per_head else (L, S)) > 0.6
    mask[..., 0] = False  # every query keeps a key
    padding = torch.zeros(N, S, dtype=torch.bool)
    padding[1, 4:] = True
    if kind is not torch.bool:
        mask, padding = mask.to(kind) * -3, padding.to(kind) * -1e4
    return {"attn_mask": mask} | ({"key_padding_mask": padding} if padded else {})


@pytest.mark.parametrize(("options", "inputs", "call"), ATTENTION)
def test_attention_equals_torchs(
    options: dict[str, Any], inputs: str, call: dict[str, Any], device: str
) -> None:
    options = {"batch_first": True} | options
    plain, fused = _pair(lambda: nn.MultiheadAttention(E, H, **options), device)
    assert isinstance(fused, Fused)
    masks = _masks(*call["masks"]) if "masks" in call else {}
    if "is_causal" in call:
        masks = {"attn_mask": nn.Transformer.generate_square_subsequent_mask(L)}
    call = {n: v for n, v in call.items() if n != "masks"} | {
        n: m.to(device) for n, m in masks.items()
    }

    def drawn(length: int, width: int = E) -> Tensor:
        shape = (N, length, width) if options["batch_first"] else (length, N, width)
        return torch.randn(shape, device=device)

    short, long = drawn(L), drawn(S)
    given = {
        "self": [short] * 3, "memory": [short, long, long], "three": [short, long, drawn(S)],
        "widths": [short, drawn(L, 6), drawn(L, 10)],
    }[inputs]  # fmt: skip
    # tied inputs stay one tensor here, and are three below
    out, expected = fused(*given, **call), plain(*given, **call)
    assert (out[1] is None) == (expected[1] is None)
    torch.testing.assert_close(out[0], expected[0], atol=2e-5, rtol=1e-4)
    assert out[0].stride() == expected[0].stride() or options["batch_first"]
    _same(plain, fused, *given, **call)


def test_unbatched_attention_and_dropout_are_torchs(device: str) -> None:
    plain, fused = _pair(lambda: nn.MultiheadAttention(E, H, dropout=0.5), device)
    x = torch.randn(L, E, device=device)
    _same(plain.eval(), fused.eval(), x, x, x, None, False)
    x = torch.randn(L, 64, E, device=device)
    fused.train()
    first, second = (fused(x, x, x, need_weights=False)[0] for _ in range(2))
    assert not torch.equal(first, second)


def test_a_wrong_mask_gets_torchs_own_message(device: str) -> None:
    _, fused = _pair(lambda: nn.MultiheadAttention(E, H, batch_first=True), device)
    x = torch.randn(N, L, E, device=device)
    with pytest.raises((AssertionError, RuntimeError), match="mask"):
        fused(x, x, x, need_weights=False, key_padding_mask=torch.zeros(N, dtype=torch.bool))


@pytest.mark.parametrize(
    ("layers", "bidirectional", "batch_first", "bias"),
    [
        (1, False, True, True), (1, True, False, False), (2, False, False, True),
        (2, True, True, False),
    ],
)  # fmt: skip
def test_a_padded_lstm_equals_torchs(
    layers: int, bidirectional: bool, batch_first: bool, bias: bool, device: str
) -> None:
    plain, fused = _pair(
        lambda: nn.LSTM(
            5, 11, layers, bias=bias, bidirectional=bidirectional, batch_first=batch_first
        ),
        device,
    )
    assert isinstance(fused, Fused)
    x = torch.randn(N, L, 5, device=device)
    _same(plain, fused, x)
    states = layers * (2 if bidirectional else 1)
    batch = N if batch_first else L
    state = [torch.randn(states, batch, 11, device=device) for _ in range(2)]
    torch.testing.assert_close(
        list(_tensors(fused(x, state))), list(_tensors(plain(x, state))), atol=1e-5, rtol=1e-4
    )


def test_an_unbatched_lstm_equals_torchs(device: str) -> None:
    plain, fused = _pair(lambda: nn.LSTM(5, 11, batch_first=True), device)
    x, state = torch.randn(L, 5, device=device), torch.randn(2, 1, 11, device=device).unbind()
    _same(plain, fused, x)
    torch.testing.assert_close(list(_tensors(fused(x, state))), list(_tensors(plain(x, state))))
    with pytest.raises(RuntimeError, match=r"input\.size"):
        fused(torch.randn(L, 6, device=device))


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.filterwarnings("ignore:RNN module weights")  # a copied module is in pieces
def test_a_packed_sequence_and_a_projection_are_torchs(device: str) -> None:
    plain, fused = _pair(lambda: nn.LSTM(5, 11, batch_first=True), device)
    packed = pack_padded_sequence(
        torch.randn(N, L, 5, device=device), torch.tensor([5, 3, 2]), batch_first=True
    )
    ours, theirs = fused(packed), plain(packed)
    assert isinstance(ours[0], PackedSequence)
    torch.testing.assert_close(ours[0].data, theirs[0].data)
    torch.testing.assert_close(ours[1], theirs[1])
    report = SwapReport()
    projected = to_fused(nn.LSTM(5, 11, proj_size=3).to(device), report)
    assert not isinstance(projected, Fused) and "projections" in report.kept[""]
    assert projected(torch.randn(N, L, 5, device=device))[0].shape == (N, L, 3)


@pytest.mark.parametrize("shape", [(E,), (L, E)])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_equals_torchs(shape: tuple[int, ...], affine: bool, device: str) -> None:
    plain, fused = _pair(lambda: nn.LayerNorm(shape, elementwise_affine=affine), device)
    _same(plain, fused, torch.randn(N, L, E, device=device))


def test_layer_norm_under_autocast_gives_torchs_dtype(device: str, half: torch.dtype) -> None:
    plain, fused = _pair(lambda: nn.LayerNorm(E), device)
    x = torch.randn(N, E, device=device, dtype=half)
    with torch.autocast(device, half):
        assert fused(x).dtype == plain(x).dtype


@pytest.mark.parametrize(
    ("ours", "theirs", "arguments"),
    [
        (kernels.LayerNorm, nn.LayerNorm, ((E,), 1e-4)),
        (kernels.MultiheadAttention, nn.MultiheadAttention, (E, H, 0.1)),
        (kernels.LSTM, nn.LSTM, (E, 11, 2)),
    ],
)
def test_a_drop_in_is_what_a_swap_gives(ours: Any, theirs: Any, arguments: Any) -> None:
    module = ours(*arguments)
    plain = theirs(*arguments)
    assert list(module.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(module.state_dict())
    assert type(to_fused(plain)) is ours
    assert type(to_torch(module)) is theirs
    for twin in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
        assert type(twin) is ours
        assert all(map(torch.equal, twin.state_dict().values(), plain.state_dict().values()))


def test_subclasses_that_override_forward_are_kept() -> None:
    class Loud(nn.LSTM):
        def forward(self, x: Any, hx: Any = None) -> Any:  # type: ignore[override]
            return super().forward(x, hx)

    class Quiet(nn.MultiheadAttention):
        """Changes nothing."""

    report = SwapReport()
    model = to_fused(nn.ModuleList([Loud(3, 3), Quiet(E, H)]), report)
    assert report.swapped == ["1"] and "Loud" in report.kept["0"]
    assert isinstance(model[1], Quiet) and type(to_torch(model)[1]) is Quiet


def test_a_transformer_layer_of_swapped_parts_equals_torchs(device: str) -> None:
    def make() -> nn.Module:
        return nn.TransformerEncoderLayer(E, H, 32, dropout=0.0, batch_first=True)

    plain, fused = _pair(make, device)
    assert sum(isinstance(m, Fused) for m in fused.modules()) == 3  # attention and two norms
    _same(plain, fused, torch.randn(N, L, E, device=device))
    x = torch.randn(N, L, E, device=device)
    with torch.no_grad():  # PyTorch's inference path reads the parts' weights itself
        torch.testing.assert_close(fused.eval()(x), plain.eval()(x), atol=2e-5, rtol=1e-4)


def test_a_parametrised_lstm_is_swapped_and_comes_back(device: str) -> None:
    plain, fused = (nn.LSTM(5, 11).to(device) for _ in range(2))
    for module in (plain, fused):
        torch.nn.utils.parametrizations.weight_norm(module, "weight_hh_l0")
    fused.load_state_dict(plain.state_dict())
    to_fused(fused)
    assert isinstance(fused, Fused)
    _same(plain, fused, torch.randn(L, N, 5, device=device))
    assert type(to_torch(fused)).__name__ == "ParametrizedLSTM"
