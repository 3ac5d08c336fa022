# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Kernels of the backbone update: a few numbers for each of N residues."""

from evofeed.kernels.runtime.backend import tl, triton


@triton.jit
def _load_numbers(PTR, at, inside):
    """Three numbers of each residue."""
    return (
        tl.load(PTR + at, mask=inside, other=0.0), tl.load(PTR + at + 1, mask=inside, other=0.0),
        tl.load(PTR + at + 2, mask=inside, other=0.0),
    )  # fmt: skip


@triton.jit
def _store_numbers(PTR, at, x, y, z, inside):
    tl.store(PTR + at, x, mask=inside)
    tl.store(PTR + at + 1, y, mask=inside)
    tl.store(PTR + at + 2, z, mask=inside)


@triton.jit
def _matrix(w, x, y, z):
    """The rotation of a unit quaternion, row by row, in the homogeneous form."""
    return (
        w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z,
    )  # fmt: skip


@triton.jit
def frame_update_kernel(
    QUATERNION, TRANS, UPDATE, NEW, NEW_TRANS, NEW_ROTS, N, BLOCK: tl.constexpr
):  # fmt: skip
    """NEW the normalised product of QUATERNION and (1, update), NEW_TRANS, NEW_ROTS of NEW."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = n < N
    w = tl.load(QUATERNION + n * 4, mask=inside, other=1.0)
    x, y, z = _load_numbers(QUATERNION, n * 4 + 1, inside)
    a, b, c = _load_numbers(UPDATE, n * 6, inside)
    u, v, s = _load_numbers(UPDATE, n * 6 + 3, inside)
    t = _load_numbers(TRANS, n * 3, inside)
    r = _matrix(w, x, y, z)
    _store_numbers(
        NEW_TRANS, n * 3, t[0] + (r[0] * u + r[1] * v + r[2] * s),
        t[1] + (r[3] * u + r[4] * v + r[5] * s), t[2] + (r[6] * u + r[7] * v + r[8] * s), inside,
    )  # fmt: skip
    n0, n1 = w - x * a - y * b - z * c, x + w * a + y * c - z * b
    n2, n3 = y + w * b + z * a - x * c, z + w * c + x * b - y * a
    norm = tl.sqrt(n0 * n0 + n1 * n1 + n2 * n2 + n3 * n3)
    w, x, y, z = n0 / norm, n1 / norm, n2 / norm, n3 / norm
    tl.store(NEW + n * 4, w, mask=inside)
    _store_numbers(NEW, n * 4 + 1, x, y, z, inside)
    r = _matrix(w, x, y, z)
    _store_numbers(NEW_ROTS, n * 9, r[0], r[1], r[2], inside)
    _store_numbers(NEW_ROTS, n * 9 + 3, r[3], r[4], r[5], inside)
    _store_numbers(NEW_ROTS, n * 9 + 6, r[6], r[7], r[8], inside)


@triton.jit
def frame_update_grad_kernel(
    DNEW, DTRANS, QUATERNION, UPDATE, OUT, N, BLOCK: tl.constexpr, HAS_NEW: tl.constexpr
):  # fmt: skip
    """OUT `[N, 6]`, the gradient of the update; without HAS_NEW none comes to the quaternion."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = n < N
    w = tl.load(QUATERNION + n * 4, mask=inside, other=1.0)
    x, y, z = _load_numbers(QUATERNION, n * 4 + 1, inside)
    r = _matrix(w, x, y, z)
    t = _load_numbers(DTRANS, n * 3, inside)
    _store_numbers(
        OUT, n * 6 + 3, r[0] * t[0] + r[3] * t[1] + r[6] * t[2],
        r[1] * t[0] + r[4] * t[1] + r[7] * t[2], r[2] * t[0] + r[5] * t[1] + r[8] * t[2], inside,
    )  # fmt: skip
    if HAS_NEW:
        a, b, c = _load_numbers(UPDATE, n * 6, inside)
        n0, n1 = w - x * a - y * b - z * c, x + w * a + y * c - z * b
        n2, n3 = y + w * b + z * a - x * c, z + w * c + x * b - y * a
        rest = 1.0 / tl.sqrt(n0 * n0 + n1 * n1 + n2 * n2 + n3 * n3)
        n0, n1, n2, n3 = n0 * rest, n1 * rest, n2 * rest, n3 * rest
        d0 = tl.load(DNEW + n * 4, mask=inside, other=0.0)
        d1, d2, d3 = _load_numbers(DNEW, n * 4 + 1, inside)
        along = n0 * d0 + n1 * d1 + n2 * d2 + n3 * d3
        d0, d1 = (d0 - n0 * along) * rest, (d1 - n1 * along) * rest
        d2, d3 = (d2 - n2 * along) * rest, (d3 - n3 * along) * rest
        _store_numbers(
            OUT, n * 6, w * d1 - x * d0 + z * d2 - y * d3, w * d2 - y * d0 - z * d1 + x * d3,
            w * d3 - z * d0 + y * d1 - x * d2, inside,
        )  # fmt: skip
    else:
        zero = tl.zeros([BLOCK], tl.float32)
        _store_numbers(OUT, n * 6, zero, zero, zero, inside)
