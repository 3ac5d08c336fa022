# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""The average over positions, and the gradient of its weights, in the layout of the projections.

A tile's columns are the D numbers of a head of some sequences, so nothing is permuted.

Letters: B batch, S sequences, N residues, H heads, D head width.
"""

from evofeed.kernels.runtime.backend import tl, triton


@triton.jit
def _columns(first, S, D: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr):
    """Sequence and number of each of a tile's columns, and which exist."""
    column = tl.arange(0, BLOCK_S * BLOCK_D)
    s, d = first + column // BLOCK_D, column % BLOCK_D
    return s.to(tl.int64), d, (s < S) & (d < D)


@triton.jit
def average_kernel(
    SHARES, X, OUT, S, N, x_m, out_m, H: tl.constexpr, D: tl.constexpr, BLOCK_I: tl.constexpr,
    BLOCK_J: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, BACK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """OUT[s, i] = sum over j of SHARES[i, j] X[s, j]; BACK: of SHARES[j, i]. Rows of x_m, out_m."""
    tiles = tl.cdiv(N, BLOCK_I)
    # (b * groups + group) * H * tiles + h * tiles + tile: i varies fastest
    program = tl.program_id(0)
    h, groups = (program // tiles) % H, tl.cdiv(S, BLOCK_S)
    b = (program // (tiles * H * groups)).to(tl.int64)
    first = (program // (tiles * H)) % groups * BLOCK_S
    i = (program % tiles) * BLOCK_I + tl.arange(0, BLOCK_I)
    s, d, in_row = _columns(first, S, D, BLOCK_S, BLOCK_D)
    rows = (b * S + s) * N
    shares = SHARES + (b * H + h) * N * N
    acc = tl.zeros([BLOCK_I, BLOCK_S * BLOCK_D], tl.float32)
    for start in range(0, N, BLOCK_J):
        j = start + tl.arange(0, BLOCK_J)
        x = tl.load(X + (rows[None, :] + j[:, None]) * x_m + (h * D + d)[None, :],
                    mask=(j < N)[:, None] & in_row[None, :], other=0.0)  # fmt: skip
        if BACK:
            w = tl.load(shares + j[:, None] * N + i[None, :],
                        mask=(j < N)[:, None] & (i < N)[None, :], other=0.0)  # fmt: skip
            w = tl.trans(w)
        else:
            w = tl.load(shares + i[:, None] * N + j[None, :],
                        mask=(i < N)[:, None] & (j < N)[None, :], other=0.0)  # fmt: skip
        acc = tl.dot(w, x, acc, input_precision=PRECISION)
    out = OUT + (rows[None, :] + i[:, None]) * out_m + (h * D + d)[None, :]
    tl.store(out, acc.to(OUT.dtype.element_ty), mask=(i < N)[:, None] & in_row[None, :])


@triton.jit
def shares_grad_kernel(
    DO, V, PARTIAL, S, N, do_m, v_m, seqs_each, splits, H: tl.constexpr, D: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """PARTIAL `[splits, B, H, N, N]`: sums over `seqs_each` sequences of DO[s, i] V[s, j]^T."""
    across = tl.cdiv(N, BLOCK_J)
    program, tiles = tl.program_id(0), tl.cdiv(N, BLOCK_I) * across
    h, split, b = (
        (program // tiles) % H,
        (program // (tiles * H)) % splits,
        program // (tiles * H * splits),
    )
    i = (program % tiles) // across * BLOCK_I + tl.arange(0, BLOCK_I)
    j = (program % across) * BLOCK_J + tl.arange(0, BLOCK_J)
    acc = tl.zeros([BLOCK_I, BLOCK_J], tl.float32)
    for step in range(0, seqs_each, BLOCK_S):
        s, d, in_row = _columns(split * seqs_each + step, S, D, BLOCK_S, BLOCK_D)
        rows = (b.to(tl.int64) * S + s) * N
        do = tl.load(DO + (rows[None, :] + i[:, None]) * do_m + (h * D + d)[None, :],
                     mask=(i < N)[:, None] & in_row[None, :], other=0.0)  # fmt: skip
        v = tl.load(V + (rows[None, :] + j[:, None]) * v_m + (h * D + d)[None, :],
                    mask=(j < N)[:, None] & in_row[None, :], other=0.0)  # fmt: skip
        acc = tl.dot(do, tl.trans(v), acc, input_precision=PRECISION)
    batches = tl.num_programs(0) // (tiles * H * splits)
    to = PARTIAL + ((split * batches + b) * H + h).to(tl.int64) * N * N
    tl.store(to + i[:, None] * N + j[None, :], acc, mask=(i < N)[:, None] & (j < N)[None, :])
