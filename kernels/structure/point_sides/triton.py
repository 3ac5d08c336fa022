# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Kernels between the projections of invariant point attention and its products.

Letters: N = B * R residues, H heads, C channels of a head, P points of queries and keys, V points
of values. A row of projections is q `[H, C]`, k and v `[H, 2 C]`, then points of queries
`[3, H, P]` and of keys and values `[3, H, P + V]`.
"""

from evofeed.kernels.runtime.backend import tl, triton
from evofeed.kernels.structure.frames import load_frame


@triton.jit
def _load_three(PTR, step, inside):
    return (
        tl.load(PTR, mask=inside, other=0.0), tl.load(PTR + step, mask=inside, other=0.0),
        tl.load(PTR + 2 * step, mask=inside, other=0.0),
    )  # fmt: skip


@triton.jit
def _store_three(PTR, step, x, y, z, inside):
    tl.store(PTR, x, mask=inside)
    tl.store(PTR + step, y, mask=inside)
    tl.store(PTR + 2 * step, z, mask=inside)


@triton.jit
def _moved(frame, p):
    """R x + t."""
    return (
        frame[0] * p[0] + frame[1] * p[1] + frame[2] * p[2] + frame[9],
        frame[3] * p[0] + frame[4] * p[1] + frame[5] * p[2] + frame[10],
        frame[6] * p[0] + frame[7] * p[1] + frame[8] * p[2] + frame[11],
    )  # fmt: skip


@triton.jit
def _turned_back(frame, d):
    """R^T x."""
    return (
        frame[0] * d[0] + frame[3] * d[1] + frame[6] * d[2],
        frame[1] * d[0] + frame[4] * d[1] + frame[7] * d[2],
        frame[2] * d[0] + frame[5] * d[1] + frame[8] * d[2],
    )  # fmt: skip


@triton.jit
def point_sides_kernel(
    PROJECTED, ROTS, TRANS, GAMMA, LEFT, RIGHT, VALUES, N, R, scale,
    H: tl.constexpr, C: tl.constexpr, P: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """LEFT and RIGHT `[B, H, R, C + 4 P]`, VALUES `[B, H, R, C + 3 V]`."""
    SIDE: tl.constexpr = C + 4 * P
    VALUE: tl.constexpr = C + 3 * V
    WIDTH: tl.constexpr = 3 * H * (C + 2 * P + V)
    n = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    h = tl.program_id(1)
    inside = n < N
    frame = load_frame(ROTS, TRANS, n, inside)
    gamma = tl.load(GAMMA + h)
    c, p, v = tl.arange(0, C)[None, :], tl.arange(0, P)[None, :], tl.arange(0, V)[None, :]
    row = PROJECTED + n * WIDTH
    at = (n // R * H + h) * R + n % R
    left, right, values = LEFT + at * SIDE, RIGHT + at * SIDE, VALUES + at * VALUE
    tl.store(left + c, tl.load(row + h * C + c, mask=inside, other=0.0), mask=inside)
    k = tl.load(row + H * C + h * 2 * C + c, mask=inside, other=0.0)
    tl.store(right + c, k * scale, mask=inside)
    x = tl.load(row + H * C + h * 2 * C + C + c, mask=inside, other=0.0)
    tl.store(values + c, x, mask=inside)
    row += 3 * H * C
    q = _moved(frame, _load_three(row + h * P + p, H * P, inside))
    _store_three(left + C + p, P, q[0], q[1], q[2], inside)
    tl.store(left + C + 3 * P + p, tl.full([BLOCK, P], 1.0, tl.float32), mask=inside)
    row += 3 * H * P + h * (P + V)
    k = _moved(frame, _load_three(row + p, H * (P + V), inside))
    x, y, z = gamma * k[0], gamma * k[1], gamma * k[2]
    _store_three(right + C + p, P, x, y, z, inside)
    tl.store(right + C + 3 * P + p, -0.5 * (x * k[0] + y * k[1] + z * k[2]), mask=inside)
    x = _moved(frame, _load_three(row + P + v, H * (P + V), inside))
    _store_three(values + C + v, V, x[0], x[1], x[2], inside)


@triton.jit
def _sums_of(total, d, local, ROTS: tl.constexpr):
    """`total` of nine and three plus the share of points: of the rotation's gradient and d's."""
    t = total
    if ROTS:
        t = (
            t[0] + tl.sum(d[0] * local[0], 1), t[1] + tl.sum(d[0] * local[1], 1),
            t[2] + tl.sum(d[0] * local[2], 1), t[3] + tl.sum(d[1] * local[0], 1),
            t[4] + tl.sum(d[1] * local[1], 1), t[5] + tl.sum(d[1] * local[2], 1),
            t[6] + tl.sum(d[2] * local[0], 1), t[7] + tl.sum(d[2] * local[1], 1),
            t[8] + tl.sum(d[2] * local[2], 1), t[9], t[10], t[11],
        )  # fmt: skip
    return (
        t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8],
        t[9] + tl.sum(d[0], 1), t[10] + tl.sum(d[1], 1), t[11] + tl.sum(d[2], 1),
    )  # fmt: skip


@triton.jit
def point_sides_grad_kernel(
    DLEFT, DRIGHT, DVALUES, PROJECTED, ROTS, TRANS, GAMMA, OUT, DFRAME, DGAMMA, N, R, scale,
    H: tl.constexpr, C: tl.constexpr, P: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr,
    OF_ROTS: tl.constexpr,
):  # fmt: skip
    """OUT, the gradient of the projections; DFRAME `[N, H, 12]` and DGAMMA `[programs, H]`: parts.

    Of DFRAME the first nine, of the rotation, only with OF_ROTS.
    """
    SIDE: tl.constexpr = C + 4 * P
    VALUE: tl.constexpr = C + 3 * V
    WIDTH: tl.constexpr = 3 * H * (C + 2 * P + V)
    n = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    h = tl.program_id(1)
    inside = n < N
    frame = load_frame(ROTS, TRANS, n, inside)
    gamma = tl.load(GAMMA + h)
    c, p, v = tl.arange(0, C)[None, :], tl.arange(0, P)[None, :], tl.arange(0, V)[None, :]
    at = (n // R * H + h) * R + n % R
    left, right, values = DLEFT + at * SIDE, DRIGHT + at * SIDE, DVALUES + at * VALUE
    row, out = PROJECTED + n * WIDTH, OUT + n * WIDTH
    tl.store(out + h * C + c, tl.load(left + c, mask=inside, other=0.0), mask=inside)
    of_k = tl.load(right + c, mask=inside, other=0.0) * scale
    tl.store(out + H * C + h * 2 * C + c, of_k, mask=inside)
    of_v = tl.load(values + c, mask=inside, other=0.0)
    tl.store(out + H * C + h * 2 * C + C + c, of_v, mask=inside)
    none = tl.zeros([BLOCK], tl.float32)
    total = (none, none, none, none, none, none, none, none, none, none, none, none)
    row, out = row + 3 * H * C, out + 3 * H * C
    local = _load_three(row + h * P + p, H * P, inside)
    d = _load_three(left + C + p, P, inside)
    total = _sums_of(total, d, local, OF_ROTS)
    back = _turned_back(frame, d)
    _store_three(out + h * P + p, H * P, back[0], back[1], back[2], inside)
    row, out = row + 3 * H * P + h * (P + V), out + 3 * H * P + h * (P + V)
    local = _load_three(row + p, H * (P + V), inside)
    k = _moved(frame, local)
    d = _load_three(right + C + p, P, inside)
    of_square = tl.load(right + C + 3 * P + p, mask=inside, other=0.0)
    of_gamma = d[0] * k[0] + d[1] * k[1] + d[2] * k[2]
    of_gamma -= 0.5 * of_square * (k[0] * k[0] + k[1] * k[1] + k[2] * k[2])
    of_gamma = tl.sum(tl.sum(tl.where(inside, of_gamma, 0.0), 1), 0)
    tl.store(DGAMMA + tl.program_id(0) * H + h, of_gamma)
    d = (
        gamma * (d[0] - of_square * k[0]), gamma * (d[1] - of_square * k[1]),
        gamma * (d[2] - of_square * k[2]),
    )  # fmt: skip
    total = _sums_of(total, d, local, OF_ROTS)
    back = _turned_back(frame, d)
    _store_three(out + p, H * (P + V), back[0], back[1], back[2], inside)
    local = _load_three(row + P + v, H * (P + V), inside)
    d = _load_three(values + C + v, V, inside)
    total = _sums_of(total, d, local, OF_ROTS)
    back = _turned_back(frame, d)
    _store_three(out + P + v, H * (P + V), back[0], back[1], back[2], inside)
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    to = DFRAME + (m * H + h) * 12
    if OF_ROTS:
        _store_three(to, 1, total[0], total[1], total[2], m < N)
        _store_three(to + 3, 1, total[3], total[4], total[5], m < N)
        _store_three(to + 6, 1, total[6], total[7], total[8], m < N)
    _store_three(to + 9, 1, total[9], total[10], total[11], m < N)


@triton.jit
def point_ends_kernel(
    ATTENDED, ROTS, TRANS, OUT, N, R, eps, stride,
    H: tl.constexpr, C: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr,
    CLAMPED: tl.constexpr,
):  # fmt: skip
    """OUT, of row stride `stride`, from ATTENDED `[B, H, R, C + 3 V]`: see `point_ends`."""
    VALUE: tl.constexpr = C + 3 * V
    n = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    h = tl.program_id(1)
    inside = n < N
    frame = load_frame(ROTS, TRANS, n, inside)
    c, v = tl.arange(0, C)[None, :], tl.arange(0, V)[None, :]
    row, out = ATTENDED + ((n // R * H + h) * R + n % R) * VALUE, OUT + n.to(tl.int64) * stride
    tl.store(out + h * C + c, tl.load(row + c, mask=inside, other=0.0), mask=inside)
    x, y, z = _load_three(row + C + v, V, inside)
    x, y, z = _turned_back(frame, (x - frame[9], y - frame[10], z - frame[11]))
    out += H * C + h * V + v
    _store_three(out, H * V, x, y, z, inside)
    square = x * x + y * y + z * z
    square = tl.maximum(square, eps) if CLAMPED else square + eps
    tl.store(out + 3 * H * V, tl.sqrt(square), mask=inside)


@triton.jit
def point_ends_grad_kernel(
    DOUT, ATTENDED, ROTS, TRANS, OUT, DTRANS, N, R, eps, stride,
    H: tl.constexpr, C: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr,
    CLAMPED: tl.constexpr,
):  # fmt: skip
    """OUT, the gradient of ATTENDED, and DTRANS `[N, H, 3]`: each head's share."""
    VALUE: tl.constexpr = C + 3 * V
    n = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    h = tl.program_id(1)
    inside = n < N
    frame = load_frame(ROTS, TRANS, n, inside)
    c, v = tl.arange(0, C)[None, :], tl.arange(0, V)[None, :]
    at = ((n // R * H + h) * R + n % R) * VALUE
    row, out, grad = ATTENDED + at, OUT + at, DOUT + n.to(tl.int64) * stride
    tl.store(out + c, tl.load(grad + h * C + c, mask=inside, other=0.0), mask=inside)
    x, y, z = _load_three(row + C + v, V, inside)
    x, y, z = _turned_back(frame, (x - frame[9], y - frame[10], z - frame[11]))
    grad += H * C + h * V + v
    dx, dy, dz = _load_three(grad, H * V, inside)
    square = x * x + y * y + z * z
    of_norm = tl.load(grad + 3 * H * V, mask=inside, other=0.0)
    if CLAMPED:
        of_norm = tl.where(square >= eps, of_norm / tl.sqrt(tl.maximum(square, eps)), 0.0)
    else:
        of_norm = of_norm / tl.sqrt(square + eps)
    dx, dy, dz = dx + of_norm * x, dy + of_norm * y, dz + of_norm * z
    x = frame[0] * dx + frame[1] * dy + frame[2] * dz
    y = frame[3] * dx + frame[4] * dy + frame[5] * dz
    z = frame[6] * dx + frame[7] * dy + frame[8] * dz
    _store_three(out + C + v, V, x, y, z, inside)
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    to = DTRANS + (m * H + h) * 3
    _store_three(to, 1, -tl.sum(x, 1), -tl.sum(y, 1), -tl.sum(z, 1), m < N)
