"""Products by a chosen algorithm: what the library is asked for, and that all else is PyTorch's."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from ctypes import c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from evofeed.kernels.runtime import cublaslt, products, tiles
from evofeed.kernels.runtime.cublaslt import Failed, Plan
from evofeed.kernels.runtime.products import kind, product
from evofeed.kernels.runtime.tracing import traced

SAVED = json.loads(Path(tiles.__file__).with_name("choices.json").read_text())["products"]
ALGORITHM = bytes(range(64))


class _Library:
    """cuBLASLt on the CPU, for float16: keeps what it is told, multiplies columns first."""

    def __init__(self, workspace: int = 0) -> None:
        self.told: dict[int, dict[Any, Any]] = {}
        self.workspace, self.fails = workspace, ""
        self.algorithms: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cublasLt"):
            raise AttributeError(name)

        def call(*args: Any) -> int:
            return 1 if name == self.fails else getattr(self, f"_{name[8:].lower()}")(*args)

        return call

    def _new(self, place: Any, **known: Any) -> int:
        place._obj.value = len(self.told) + 1
        self.told[place._obj.value] = known
        return 0

    def _create(self, place: Any) -> int:
        return self._new(place)

    def _matmuldesccreate(self, place: Any, compute: int, scale: int) -> int:
        assert (compute, scale) == (68, 0)
        return self._new(place)

    def _matrixlayoutcreate(
        self, place: Any, kind: int, rows: c_uint64, columns: c_uint64, apart: c_int64
    ) -> int:
        return self._new(
            place, type=kind, rows=rows.value, columns=columns.value, apart=apart.value
        )

    def _set(self, which: c_void_p, name: int, value: Any, size: Any) -> int:
        assert ctypes.sizeof(value._obj) == size.value and which.value is not None
        self.told[which.value][name] = value._obj.value
        return 0

    _matmuldescsetattribute = _matrixlayoutsetattribute = _set

    def _matmulalgocheck(self, *args: Any) -> int:
        *_, algorithm, found = args
        self.algorithms.append(bytes(algorithm._obj))
        found._obj.workspace = self.workspace
        return 0

    def _matrix(self, at: int, which: c_void_p, turned: bool) -> Tensor:
        assert which.value is not None
        known = self.told[which.value]
        rows, columns, apart = known["rows"], known["columns"], known["apart"]
        batch, between = known.get(5, 1), known.get(6, 0)
        of = {0: torch.float32, 2: torch.float16}[known["type"]]
        size = ((batch - 1) * between + (columns - 1) * apart + rows) * of.itemsize
        memory = torch.frombuffer((ctypes.c_char * size).from_address(at), dtype=of)
        strides = (between, apart, 1) if turned else (between, 1, apart)
        shape = (batch, columns, rows) if turned else (batch, rows, columns)
        return memory.as_strided(shape, strides)

    def _matmul(self, *args: Any) -> int:
        _, which, one, a, a_is, b, b_is, zero, c, c_is, d, d_is, algorithm, space, size, _ = args
        assert one._obj.value == 1 and zero._obj.value == 0 and c == d and c_is is d_is
        assert bytes(algorithm._obj) == ALGORITHM
        assert (space is not None) == bool(size) and size == self.workspace
        told = self.told[which.value]
        first = self._matrix(a, a_is, bool(told[3])).float()
        made = first @ self._matrix(b, b_is, bool(told[4])).float()
        self._matrix(d, d_is, False).copy_(made)
        return 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Library]:
    """A library of our own in place of the card's; every product has a saved algorithm."""
    ours = _Library()
    monkeypatch.setattr(cublaslt, "library", lambda: ours)
    monkeypatch.setattr(cublaslt, "stream_of", lambda device: 0)
    cublaslt._handle.cache_clear()
    yield ours
    cublaslt._handle.cache_clear()


def _some(*shape: int) -> Tensor:
    return torch.randn(shape).half()


@pytest.mark.parametrize(
    "case", ["nn", "nt", "tn", "tt", "several", "several turned", "part of longer rows", "float32"],
)  # fmt: skip
def test_the_library_is_asked_for_the_product(library: _Library, case: str) -> None:
    a, b = {
        "nt": (_some(24, 16), _some(8, 16).t()),
        "tn": (_some(16, 24).t(), _some(16, 8)),
        "tt": (_some(16, 24).t(), _some(8, 16).t()),
        "several": (_some(3, 24, 16), _some(3, 8, 16).mT),
        "several turned": (_some(3, 16, 24).mT, _some(3, 16, 8)),
        "part of longer rows": (_some(24, 40)[:, 8:24], _some(16, 8)),
    }.get(case, (_some(24, 16), _some(16, 8)))
    dtype = torch.float32 if case == "float32" else torch.float16
    out = torch.full((*a.shape[:-1], 8), torch.nan, dtype=dtype)
    library.workspace = 512 if case == "nt" else 0
    plan = Plan(a, b, out)
    plan.take(ALGORITHM)
    assert plan(a, b, out)
    torch.testing.assert_close(out, (a.float() @ b.float()).to(dtype))


def test_a_refusal_is_no_plan(library: _Library) -> None:
    a, b = _some(24, 16), _some(16, 8)
    plan = Plan(a, b, a @ b)
    library.fails = "cublasLtMatmulAlgoCheck"
    with pytest.raises(Failed, match="AlgoCheck gave 1"):
        plan.take(ALGORITHM)
    library.fails = ""
    plan.take(ALGORITHM)
    library.fails = "cublasLtMatmul"
    assert not plan(a, b, a @ b)


@pytest.mark.parametrize("several", [False, True])
def test_without_a_card_pytorch_makes_them(several: bool) -> None:
    a, b = (_some(3, 24, 16), _some(3, 16, 8)) if several else (_some(24, 16), _some(16, 8))
    out = torch.empty((*a.shape[:-1], 8), dtype=torch.float16)
    assert product(a, b, out=out) is out
    assert torch.equal(out, a @ b) and torch.equal(product(a, b), a @ b)
    if not several:
        assert torch.equal(product(a, b, dtype=torch.float32), (a @ b).float())


def test_plans_are_for_the_current_card_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch goes to the current one, and PyTorch makes its factors' card that."""
    made = object()
    monkeypatch.setattr(products, "_plans", {})
    monkeypatch.setattr(products, "_made", lambda a, b, dtype: made)
    a = torch.ones(2, 2)
    for current, plan in ((1, None), (a.get_device(), made), (1, None)):
        monkeypatch.setattr(torch.cuda, "current_device", lambda at=current: at)
        assert products._plan(a, a, a.dtype) is plan


def test_kinds_say_all_that_an_algorithm_depends_on() -> None:
    a, b = torch.empty(24, 16, dtype=torch.bfloat16), torch.empty(8, 16, dtype=torch.bfloat16)
    assert kind(a, b.t(), torch.bfloat16) == "nt 24 x 16 x 8 bfloat16"
    of_weight = kind(a.t(), torch.empty(24, 8), torch.float32)
    assert of_weight == "tn 16 x 24 x 8 bfloat16 to float32"
    several = kind(a.expand(3, 24, 16), b.t().expand(3, 16, 8), torch.bfloat16)
    assert several == "nt 3 x 24 x 16 x 8 bfloat16"


def test_what_is_saved_can_be_read() -> None:
    assert SAVED
    assert len({(e["card"], e["cublaslt"], e["kind"]) for e in SAVED}) == len(SAVED)
    for entry in SAVED:
        assert len(bytes.fromhex(entry["algorithm"])) == 64 and entry["us"] < entry["pytorch_us"]
    first = SAVED[0]
    found = tiles.saved_products(first["card"], first["cublaslt"])
    assert found[first["kind"]] == bytes.fromhex(first["algorithm"])
    assert not tiles.saved_products(first["card"], first["cublaslt"] + 1)
    assert not tiles.saved_products("another card", first["cublaslt"])


def _inputs(of: str) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Random ones of a saved kind, and what else `product` takes."""
    turned, rest = of.split(" ", 1)
    *sizes, last = rest.split(" x ")
    *several, m, k, n = [*map(int, sizes), int(last.split()[0])]
    shapes = (k, m) if turned[0] == "t" else (m, k), (n, k) if turned[1] == "t" else (k, n)
    a, b = (torch.randn(*several, *shape, device="cuda").bfloat16() for shape in shapes)
    named: dict[str, Any] = {"dtype": torch.float32} if "to float32" in of else {}
    return a.mT if turned[0] == "t" else a, b.mT if turned[1] == "t" else b, named


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("of", [entry["kind"] for entry in SAVED])
def test_a_saved_algorithm_is_taken_and_right(of: str) -> None:
    card, version = torch.cuda.get_device_name(), cublaslt.version()
    if of not in tiles.saved_products(card, version):
        pytest.skip(f"nothing is saved for {card} and cuBLASLt {version}")
    torch.manual_seed(0)
    a, b, named = _inputs(of)
    out = product(a, b, **named)
    assert products._plan(a, b, out.dtype)
    exact = a.double() @ b.double()
    plain = products.plain(a, b, None, named.get("dtype"))
    errors = [float((x.double() - exact).norm() / exact.norm()) for x in (out, plain)]
    assert out.dtype is plain.dtype and errors[0] <= 1.05 * errors[1]
    again = torch.full_like(out, torch.nan)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product(a, b, out=again, **named)
    graph.replay()
    assert torch.equal(again, out)
    with traced([a, b]) as trace:
        product(a, b, **named)
    assert [step.function for step in trace.steps if step.kind == "call"] == [product]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_addresses_that_are_no_multiples_of_16_bytes_are_pytorchs() -> None:
    a, b, named = _inputs(SAVED[0]["kind"])
    memory = torch.empty(a.numel() + 8, device="cuda", dtype=a.dtype)
    shifted = memory[1 : 1 + a.numel()].as_strided(a.shape, a.stride(), 1).copy_(a)
    plain = products.plain(shifted, b, None, None)
    assert torch.equal(product(shifted, b, **named).float(), plain.float())
