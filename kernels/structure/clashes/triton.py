# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Kernels of the clashes: each atom beside all others, and the gradient of its place.

Letters: B samples, A atoms, 14 places for atoms in a residue.
"""

from evofeed.kernels.runtime.backend import tl, triton


@triton.jit
def _load_atoms(POINTS, EXISTS, RADIUS, RESIDUE, CHAIN, at, inside):
    p = POINTS + at * 3
    return (
        tl.load(p, mask=inside, other=0.0), tl.load(p + 1, mask=inside, other=0.0),
        tl.load(p + 2, mask=inside, other=0.0), tl.load(EXISTS + at, mask=inside, other=0.0),
        tl.load(RADIUS + at, mask=inside, other=0.0),
        tl.load(RESIDUE + at // 14, mask=inside, other=0),
        tl.load(CHAIN + at // 14, mask=inside, other=0), at % 14,
    )  # fmt: skip


@triton.jit
def _before(one, other, bonded_c, bonded_n, BY_NUMBER: tl.constexpr):
    """Whether a pair of residues counts in this direction, and its atoms are not bonded."""
    same = one[6][:, None] == other[6][None, :]
    before = one[5][:, None] < other[5][None, :]
    if not BY_NUMBER:
        before = tl.where(same, before, one[6][:, None] < other[6][None, :])
    next_one = (one[5][:, None] + 1 == other[5][None, :]) & same
    bonded = next_one & (one[7] == bonded_c)[:, None] & (other[7] == bonded_n)[None, :]
    return before & (bonded == 0)


@triton.jit
def _after(one, other, bonded_c, bonded_n, BY_NUMBER: tl.constexpr):
    """`_before` of the pair the other way round."""
    same = one[6][:, None] == other[6][None, :]
    after = other[5][None, :] < one[5][:, None]
    if not BY_NUMBER:
        after = tl.where(same, after, other[6][None, :] < one[6][:, None])
    next_other = (other[5][None, :] + 1 == one[5][:, None]) & same
    bonded = next_other & (other[7] == bonded_c)[None, :] & (one[7] == bonded_n)[:, None]
    return after & (bonded == 0)


@triton.jit
def _overlap(one, other, tolerance, c, n, spared, BY_NUMBER: tl.constexpr):
    """Mask of the pairs, their distance, how much closer they are than allowed, 3 differences."""
    x = one[0][:, None] - other[0][None, :]
    y = one[1][:, None] - other[1][None, :]
    z = one[2][:, None] - other[2][None, :]
    distance = tl.sqrt(x * x + y * y + z * z + 1e-10)
    counted = _before(one, other, c, n, BY_NUMBER) | _after(one, other, c, n, BY_NUMBER)
    both_spared = (one[7] == spared)[:, None] & (other[7] == spared)[None, :]
    mask = tl.where(counted & (both_spared == 0), one[3][:, None] * other[3][None, :], 0.0)
    allowed = mask * (one[4][:, None] + other[4][None, :]) - tolerance
    return mask, distance, allowed - distance, x, y, z


@triton.jit
def clashes_kernel(
    POINTS, EXISTS, RADIUS, RESIDUE, CHAIN, ERROR, COUNT, WORST, PAIRS, A, tolerance, c, n, spared,
    BLOCK: tl.constexpr, BY_NUMBER: tl.constexpr,
):  # fmt: skip
    """Of each atom `[B, A]` the sum of overlaps, their number, whether there is one, pairs."""
    first = tl.program_id(1) * A
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    one = _load_atoms(POINTS, EXISTS, RADIUS, RESIDUE, CHAIN, first + i, i < A)
    zeros = tl.zeros([BLOCK, BLOCK], tl.float32)
    error, count, worst, pairs = zeros, zeros, zeros, zeros
    for start in range(0, A, BLOCK):
        j = start + tl.arange(0, BLOCK)
        other = _load_atoms(POINTS, EXISTS, RADIUS, RESIDUE, CHAIN, first + j, j < A)
        mask, _, overlap, _, _, _ = _overlap(one, other, tolerance, c, n, spared, BY_NUMBER)
        clash = tl.where(overlap > 0, mask, 0.0)
        error += mask * tl.maximum(overlap, 0.0)
        count += clash
        worst = tl.maximum(worst, clash)
        pairs += mask
    tl.store(ERROR + first + i, tl.sum(error, 1), mask=i < A)
    tl.store(COUNT + first + i, tl.sum(count, 1), mask=i < A)
    tl.store(WORST + first + i, tl.max(worst, 1), mask=i < A)
    tl.store(PAIRS + first + i, tl.sum(pairs, 1), mask=i < A)


@triton.jit
def clashes_grad_kernel(
    POINTS, EXISTS, RADIUS, RESIDUE, CHAIN, GRAD, OUT, A, tolerance, c, n, spared,
    BLOCK: tl.constexpr, BY_NUMBER: tl.constexpr,
):  # fmt: skip
    """OUT `[B, A, 3]`, the gradient of the points, from that of the atoms' sums, GRAD `[B, A]`."""
    first = tl.program_id(1) * A
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    one = _load_atoms(POINTS, EXISTS, RADIUS, RESIDUE, CHAIN, first + i, i < A)
    own = tl.load(GRAD + first + i, mask=i < A, other=0.0)
    zeros = tl.zeros([BLOCK, BLOCK], tl.float32)
    dx, dy, dz = zeros, zeros, zeros
    for start in range(0, A, BLOCK):
        j = start + tl.arange(0, BLOCK)
        other = _load_atoms(POINTS, EXISTS, RADIUS, RESIDUE, CHAIN, first + j, j < A)
        mask, distance, overlap, x, y, z = _overlap(one, other, tolerance, c, n, spared, BY_NUMBER)
        grad = own[:, None] + tl.load(GRAD + first + j, mask=j < A, other=0.0)[None, :]
        slope = tl.where(overlap > 0, -mask * grad / distance, 0.0)
        dx += slope * x
        dy += slope * y
        dz += slope * z
    to = OUT + (first + i) * 3
    tl.store(to, tl.sum(dx, 1), mask=i < A)
    tl.store(to + 1, tl.sum(dy, 1), mask=i < A)
    tl.store(to + 2, tl.sum(dz, 1), mask=i < A)
