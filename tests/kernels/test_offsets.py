"""Offsets beyond 2^31 numbers: in the source of every kernel, and by attention down far strides."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import evofeed.kernels
from evofeed.base.errors import UnsupportedShape
from evofeed.kernels import reference
from evofeed.kernels.ops.attention import inputs as room
from evofeed.kernels.ops.attention.inputs import MAX_TILE, BackwardInputs, is_wide
from evofeed.kernels.ops.attention.op import (
    biased_attention,
    output_delta,
    prepare_mask,
    run_backward,
    run_forward,
)
from evofeed.kernels.ops.attention.triton import mask_kernel
from evofeed.kernels.runtime.launching import _check_grid
from evofeed.kernels.runtime.tiles import AttentionTiles

ROOM = Path(evofeed.kernels.__file__).parent
STRIDE = re.compile(r"(?!\w+_each)[a-z]+s_[a-z0-9]+|[a-z_]*stride|[dg]+_m|s[01]|square")
LOCAL, POSITION, WIDE = range(3)
"""Numbers within a tile; numbers of the whole, in 32 bits; numbers in 64 bits."""


def _kernels() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in sorted(ROOM.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and any(
                ast.unparse(d) in ("triton.jit", "gluon.jit") for d in node.decorator_list
            ):
                yield f"{path.relative_to(ROOM)}:{node.name}", node


def _is_wide(node: ast.expr) -> bool:
    return "int64" in ast.unparse(node)


class _Widths(ast.NodeVisitor):
    """Products of a stride and a position in 32 bits, in one function.

    Args:
        names: what its parameters are, where that is known.
        calls: filled with what it hands to the functions that it calls.
        returned: what functions return, where that is a tuple.
    """

    def __init__(
        self, names: dict[str, int], calls: dict[str, list[list[int]]],
        returned: dict[str, list[ast.expr]],
    ) -> None:  # fmt: skip
        self.names, self.calls, self.returned = dict(names), calls, returned
        self.found: list[str] = []

    def kind(self, node: ast.expr) -> int:
        if isinstance(node, ast.Name):
            return self.names.get(node.id, LOCAL if node.id.isupper() else POSITION)
        if isinstance(node, ast.Constant):
            return LOCAL
        if isinstance(node, ast.Call):
            text = ast.unparse(node)
            if _is_wide(node) or text.startswith("positions("):
                return WIDE
            if re.match(r"(tl|gl)\.(arange|zeros)\(|interleaved\(|_rows_of\(", text):
                return LOCAL
            return POSITION
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Mod) and self.kind(node.right) == LOCAL:
                return LOCAL
            return max(self.kind(node.left), self.kind(node.right))
        if isinstance(node, ast.Subscript | ast.Attribute):
            return self.kind(node.value)
        if isinstance(node, ast.IfExp) and ast.unparse(node.test) == "WIDE":
            return self.kind(node.body)
        return POSITION

    def visit_If(self, node: ast.If) -> None:
        """The branch of 32 bits is for what `is_wide` says no to."""
        narrow = ast.unparse(node.test) == "WIDE"
        for statement in node.body + ([] if narrow else node.orelse):
            self.visit(statement)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Call):
                made = self.returned.get(ast.unparse(node.value.func), [])
                pairs += [
                    (to, value)
                    for to, value in zip(target.elts, made, strict=False)
                    if _is_wide(value)
                ]
            for to, value in pairs:
                if isinstance(to, ast.Name):
                    self.names[to.id] = self.kind(value)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        handed = [self.kind(argument) for argument in node.args]
        self.calls.setdefault(ast.unparse(node.func), []).append(handed)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Mult):
            return
        sides = (node.left, node.right)
        strides = [isinstance(s, ast.Name) and STRIDE.fullmatch(s.id) is not None for s in sides]
        kinds = [self.kind(s) for s in sides]
        if any(strides) and WIDE not in kinds:
            other = kinds[0] if strides[1] else kinds[1]
            if other == POSITION:
                self.found.append(f"line {node.lineno}: {ast.unparse(node)}")


def test_a_position_times_a_stride_is_64_bits_wide_in_every_kernel() -> None:
    functions = dict(_kernels())
    known: dict[str, dict[str, int]] = {}
    ends = [(node.name, node.body[-1]) for node in functions.values()]
    returned = {
        name: end.value.elts for name, end in ends
        if isinstance(end, ast.Return) and isinstance(end.value, ast.Tuple)
    }  # fmt: skip
    for _ in range(3):  # helpers of helpers
        calls: dict[str, list[list[int]]] = {}
        found = {}
        for name, node in functions.items():
            widths = _Widths(known.get(node.name, {}), calls, returned)
            widths.visit(node)
            if widths.found:
                found[name] = widths.found
        for node in functions.values():
            handed = calls.get(node.name, [])
            names = [argument.arg for argument in node.args.args]
            known[node.name] = {
                name: min(kinds) for name, *kinds in zip(names, *handed, strict=False) if kinds
            }
    assert len(functions) > 60
    assert not found


FAR, N, D = 2**24 - 64, 144, 16
"""Numbers between two positions, positions, head width: the last position is beyond 2^31."""
FIELDS = ("q", "k", "v", "out", "do", "dq", "dk", "dv")


@pytest.fixture
def apart(device: str, half: torch.dtype) -> dict[str, Tensor]:
    """Views `[1, 1, N, 1, D]` of one memory with that stride, of which little is ever touched.

    They begin in its middle: an offset that wraps round reads zeros there, not another's memory.
    """
    memory = torch.empty(2**31 + N * FAR, dtype=half, device=device)
    views = {}
    for number, name in enumerate(FIELDS):
        at = 2**31 + number * D
        views[name] = memory.as_strided((1, 1, N, 1, D), (D, D, FAR, D, 1), at)
        views[name].copy_(torch.randn(1, 1, N, 1, D))
        for n in range(2**31 // FAR, N):
            memory[at + n * FAR - 2**32 :][:D] = 0
    return views


@pytest.mark.parametrize("tiles", [None, AttentionTiles()], ids=["chosen", "on any card"])
def test_attention_down_an_axis_longer_than_32_bits(
    apart: dict[str, Tensor], tiles: AttentionTiles | None, device: str
) -> None:
    scale = D**-0.5
    q, k, v, do = (apart[name].clone().float().requires_grad_() for name in ("q", "k", "v", "do"))
    bias = torch.randn(1, 1, N, N, device=device, requires_grad=True)
    valid = (torch.arange(N, device=device) % 5 > 0).float().view(1, 1, N)
    ready = (bias.detach() / scale).to(apart["q"].dtype)
    masked = prepare_mask(valid, scale, ready.dtype)
    qkv = [apart[name] for name in "qkv"]
    lse = run_forward(*qkv, ready, masked, scale, apart["out"], tiles)
    exact = reference.biased_attention(q, k, v, bias, valid)
    torch.testing.assert_close(apart["out"].float(), exact.detach(), atol=2e-2, rtol=2e-2)
    grads = (apart["dq"], apart["dk"], apart["dv"])
    delta = output_delta(apart["out"], apart["do"])
    db = run_backward(
        BackwardInputs(apart["do"], *qkv, ready, masked, lse, delta, scale, grads), tiles
    )  # fmt: skip
    expected = torch.autograd.grad(exact, [q, k, v, bias], do.detach())
    assert db is not None
    for ours, theirs in zip((*grads, db), expected, strict=True):
        torch.testing.assert_close(ours.float(), theirs, atol=3e-2, rtol=3e-2)


def _view(per_position: int, length: int = 100) -> Tensor:
    """`[1, 1, N, 4, 16]` with that many numbers between positions, of no memory."""
    base = torch.empty((1 + length) * per_position, device="meta", dtype=torch.bfloat16)
    return base.as_strided((1, 1, length, 4, 16), (64, 64, per_position, 16, 1))


def test_offsets_are_64_bits_wide_from_the_first_row_that_needs_them() -> None:
    edge = (2**31 - 4 * 16 - MAX_TILE) // (100 + MAX_TILE)
    near, far = _view(edge), _view(edge + 1)
    assert not is_wide(None, near)
    assert is_wide(None, far)
    assert is_wide(None, near, far)  # one of several is enough
    assert (100 + MAX_TILE) * edge + 4 * 16 < 2**31  # the last tile's last, filled up or not


def test_offsets_in_the_bias_and_its_gradient_count_too() -> None:
    view = _view(64)
    longest = math.isqrt(2**31)
    small, large = (
        torch.empty(1, device="meta").expand(1, 1, n, n) for n in (longest - 128, longest + 1)
    )
    assert not is_wide(small, view)
    assert is_wide(large, view)


@pytest.mark.parametrize("has_mask", [False, True])
def test_wide_and_narrow_offsets_give_equal_bits(
    has_mask: bool, device: str, half: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    shape = (1, 2, 40, 2, 16)
    q, k, v, do = (torch.randn(shape, device=device, dtype=half) for _ in range(4))
    bias = torch.randn(1, 2, 40, 40, device=device, dtype=half)
    mask = (torch.rand(1, 2, 40, device=device) > 0.3).float() if has_mask else None
    found = []
    for limit in (2**31, 0):
        monkeypatch.setattr(room, "LIMIT", limit)
        leaves = [t.clone().requires_grad_() for t in (q, k, v, bias)]
        out = biased_attention(*leaves, mask)
        found.append([out, *torch.autograd.grad(out, leaves, do)])
    for narrow, wide in zip(*found, strict=True):
        assert torch.equal(narrow, wide)


def test_a_grid_that_no_gpu_launches_is_refused_before_it() -> None:
    for grid in ((1, 65536), (1, 1, 65536), (2**31,)):
        with pytest.raises(UnsupportedShape, match=r"mask_kernel.*fewer"):
            _check_grid(mask_kernel, grid)
    _check_grid(mask_kernel, (2**31 - 1, 65535, 65535))
