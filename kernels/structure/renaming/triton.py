# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""The kernel of the namings: distances of some atoms to all, in three structures at once.

Letters: A atoms, 14 places in a residue; S of them, from FIRST on, hold atoms with two names.
"""

from evofeed.kernels.runtime.backend import tl, triton
from evofeed.kernels.structure.frames import load_point


@triton.jit
def _distance(one, other, eps):
    x, y, z = (
        one[0][:, None] - other[0][None, :], one[1][:, None] - other[1][None, :],
        one[2][:, None] - other[2][None, :],
    )  # fmt: skip
    return tl.sqrt(x * x + y * y + z * z + eps)


@triton.jit
def renaming_kernel(
    POINTS, TARGET, OTHER, FROM, TO, ERROR, A, total, eps,
    S: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ERROR `[2, total]`: by how much an atom's distances differ from TARGET's and from OTHER's.

    FROM `[B, A / 14 * S]` and TO `[B, A]` are masks; total is the size of FROM.
    """
    first, some = tl.program_id(1) * A, A // 14 * S
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i = first + n // S * 14 + FIRST + n % S
    there = n < some
    one, true, alt = (
        load_point(POINTS, i, there),
        load_point(TARGET, i, there),
        load_point(OTHER, i, there),
    )
    error = tl.zeros([BLOCK, BLOCK], tl.float32)
    error_alt = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, A, BLOCK):
        k = start + tl.arange(0, BLOCK)
        j, inside = first + k, k < A
        weight = tl.load(TO + j, mask=inside, other=0.0)[None, :]
        found = _distance(one, load_point(POINTS, j, inside), eps)
        off = found - _distance(true, load_point(TARGET, j, inside), eps)
        off_alt = found - _distance(alt, load_point(OTHER, j, inside), eps)
        error += weight * tl.sqrt(off * off + eps)
        error_alt += weight * tl.sqrt(off_alt * off_alt + eps)
    at = tl.program_id(1) * some + n
    own = tl.load(FROM + at, mask=there, other=0.0)
    tl.store(ERROR + at, own * tl.sum(error, 1), mask=there)
    tl.store(ERROR + total + at, own * tl.sum(error_alt, 1), mask=there)
