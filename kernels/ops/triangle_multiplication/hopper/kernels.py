# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""Input and output of a triangle multiplication on Hopper, in 16 bits, in Gluon.

Computes the same as `triton.py` in persistent programs: each keeps its weights in shared
memory and loops over tiles of pairs, with the next tile's copy in flight. Norms are folded
into the products after them: with W' = W gamma, W norm(x) = (W' x - mean W' 1) / std + W beta,
so the tensor cores read tiles that were not normalised.

Letters: M = B * R * R pairs, C channels of the pair representation, E hidden channels.
"""

from evofeed.kernels.runtime.backend import barrier, cp, gl, gluon, hopper
from evofeed.kernels.runtime.hopper_tiles import (
    add_columns,
    copy_columns,
    copy_rows,
    float32,
    lines_of,
    load_drop,
    mma_layout,
    rounded,
    sigmoid_of_half,
    store_columns,
    store_rows,
    store_sums,
    tiles_of,
    vectors_of,
    zero_sums,
)

HALF = gl.constexpr(0.5)  # of a gate, the argument of `sigmoid_of_half`


@gluon.jit
def _fold_norm(tile, W, BIAS, GAMMA, BETA, factor):
    """`tile` = W' = factor * W * GAMMA for W `[N, K]`.

    Returns factor * (W BETA + BIAS) and the sums of the rows of W'.
    """
    layout: gl.constexpr = lines_of(tile.shape[1], gl.num_warps())
    n = gl.arange(0, tile.shape[0], gl.SliceLayout(1, layout))
    k = gl.arange(0, tile.shape[1], gl.SliceLayout(0, layout))
    w = gl.load(W + (n[:, None] * tile.shape[1] + k[None, :])).to(gl.float32) * factor
    gamma, beta = gl.load(GAMMA + k).to(gl.float32), gl.load(BETA + k).to(gl.float32)
    shift = gl.sum(w * beta[None, :], 1) + gl.load(BIAS + n).to(gl.float32) * factor
    w = (w * gamma[None, :]).to(tile.dtype)
    tile.store(w)
    return shift, gl.sum(w.to(gl.float32), 1)


@gluon.jit
def _store_folded(tile, vectors, first, W, BIAS, GAMMA, BETA, factor):
    """`_fold_norm`, with its results stored in vectors `first` and `first + 1`."""
    shift, total = _fold_norm(tile, W, BIAS, GAMMA, BETA, factor)
    vectors.index(first).store(shift)
    vectors.index(first + 1).store(total)


@gluon.jit
def _load_stats(STATS, rows, M):
    """1/std and -mean/std of rows."""
    mean = gl.load(STATS + rows, mask=rows < M, other=0.0)
    rstd = gl.load(STATS + M + rows, mask=rows < M, other=0.0)
    return rstd, -mean * rstd


@gluon.jit
def _normalised(product, rstd, centre, vectors, first):
    """The product of normalised rows from the product of plain rows (`_fold_norm`)."""
    of_column: gl.constexpr = gl.SliceLayout(0, product.type.layout)
    shift = vectors.index(first).load(of_column)
    total = vectors.index(first + 1).load(of_column)
    return product * rstd[:, None] + (centre[:, None] * total[None, :] + shift[None, :])


@gluon.jit
def triangle_in_grad_kernel(
    Z, STATS, GAMMA, BETA, W, BIAS, MASK, DAB, DP, PARTIAL, M, dp_m,
    C: gl.constexpr, E: gl.constexpr, BLOCK_E: gl.constexpr, BLOCK_M: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """Gradients of the four projections before their bias, DP `[M, 4E]`, from DAB `[2, E, M]`.

    A program takes BLOCK_E channels of a or b. PARTIAL `[programs, 4E]`: sums of columns of DP.
    """
    dtype: gl.constexpr = Z.dtype.element_ty
    mma: gl.constexpr = mma_layout(BLOCK_M, BLOCK_E, num_warps)
    PARTS: gl.constexpr = E // BLOCK_E
    part = gl.program_id(0) % (2 * PARTS)
    half, e0 = part // PARTS, part % PARTS * BLOCK_E
    program, programs = gl.program_id(0) // (2 * PARTS), gl.num_programs(0) // (2 * PARTS)
    row0 = half * 2 * E + e0
    W += row0 * C
    BIAS += row0
    DP += row0
    DAB += (half * E + e0).to(gl.int64) * M
    w_tiles, vectors = tiles_of(dtype, 2, BLOCK_E, C), vectors_of(4, BLOCK_E)
    _store_folded(w_tiles.index(0), vectors, 0, W, BIAS, GAMMA, BETA, 1.0)
    _store_folded(w_tiles.index(1), vectors, 2, W + E * C, BIAS + E, GAMMA, BETA, HALF)
    z_tiles, dab_tiles = tiles_of(dtype, 2, BLOCK_M, C), tiles_of(dtype, 2, BLOCK_E, BLOCK_M)
    dg_tile = tiles_of(dtype, 1, BLOCK_M, BLOCK_E).index(0)
    dp_shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, BLOCK_E], dtype)
    zeros = gl.full([BLOCK_M, BLOCK_E], 0.0, gl.float32, mma)
    hopper.fence_async_shared()
    sum_p, sum_g = zero_sums(BLOCK_M, BLOCK_E), zero_sums(BLOCK_M, BLOCK_E)
    copy_rows(z_tiles.index(0), Z, program * BLOCK_M, M, C)
    copy_columns(dab_tiles.index(0), DAB, program * BLOCK_M, M)
    cp.commit_group()
    slot = 0
    for tile in range(program, gl.cdiv(M, BLOCK_M), programs):
        first = tile * BLOCK_M
        rows = first + gl.arange(0, BLOCK_M, gl.SliceLayout(1, mma))
        rstd, centre = _load_stats(STATS, rows, M)
        mask = gl.load(MASK + rows, mask=rows < M, other=0.0).to(gl.float32)
        cp.wait_group(0)
        barrier()
        z = z_tiles.index(slot).load(gl.DotOperandLayout(0, mma, 2))
        wp, wg = w_tiles.index(0).permute((1, 0)), w_tiles.index(1).permute((1, 0))
        g = hopper.warpgroup_mma(z, wg, zeros, use_acc=False, is_async=True)
        p = hopper.warpgroup_mma(z, wp, zeros, use_acc=False, is_async=True)
        after = first + programs * BLOCK_M
        copy_rows(z_tiles.index(1 - slot), Z, after, M, C)
        copy_columns(dab_tiles.index(1 - slot), DAB, after, M)
        cp.commit_group()
        dy = float32(dab_tiles.index(slot).permute((1, 0)).load(mma)) * mask[:, None]
        g = hopper.warpgroup_mma_wait(1, [g])
        sig = sigmoid_of_half(_normalised(g, rstd, centre, vectors, 2))
        dp = dy * sig
        p, _ = hopper.warpgroup_mma_wait(0, [p, z])
        p = _normalised(p, rstd, centre, vectors, 0)
        barrier()  # all warps have read dab
        dp_tile = dab_tiles.index(slot)._reinterpret(dtype, [BLOCK_M, BLOCK_E], dp_shared)
        dp_tile.store(dp.to(dtype))
        dg_tile.store((dp * p * (1.0 - sig)).to(dtype))
        barrier()
        sum_p = add_columns(sum_p, store_rows(DP, dp_tile, first, M, dp_m))
        sum_g = add_columns(sum_g, store_rows(DP + E, dg_tile, first, M, dp_m))
        slot = 1 - slot
    cp.wait_group(0)
    PARTIAL += program * 4 * E + row0
    store_sums(PARTIAL, sum_p)
    store_sums(PARTIAL + E, sum_g)


@gluon.jit
def triangle_out_kernel(
    XT, GAMMA_X, BETA_X, WZ, BZ, Z, STATS_Z, GAMMA_Z, BETA_Z, WG, BG, DROP, OUT, STATS_X,
    M, eps, drop_1, drop_2, drop_rows,
    C: gl.constexpr, E: gl.constexpr, BLOCK_M: gl.constexpr, HAS_DROP: gl.constexpr,
    DROP_STEP: gl.constexpr, HAS_RES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """OUT = Z + DROP * (norm(X) Wz^T + bz) * sigmoid(norm(Z) Wg^T + bg); X is channels first."""
    dtype: gl.constexpr = Z.dtype.element_ty
    mma: gl.constexpr = mma_layout(BLOCK_M, C, num_warps)
    operand: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    of_x: gl.constexpr = gl.SliceLayout(1, operand)
    wz_tile, wg_tile = tiles_of(dtype, 1, C, E).index(0), tiles_of(dtype, 1, C, C).index(0)
    vectors = vectors_of(4, C)
    _store_folded(wz_tile, vectors, 0, WZ, BZ, GAMMA_X, BETA_X, 1.0)
    _store_folded(wg_tile, vectors, 2, WG, BG, GAMMA_Z, BETA_Z, HALF)
    x_tiles, z_tiles = tiles_of(dtype, 2, E, BLOCK_M), tiles_of(dtype, 2, BLOCK_M, C)
    hopper.fence_async_shared()
    program, programs = gl.program_id(0), gl.num_programs(0)
    zeros = gl.full([BLOCK_M, C], 0.0, gl.float32, mma)
    copy_rows(z_tiles.index(0), Z, program * BLOCK_M, M, C)
    copy_columns(x_tiles.index(0), XT, program * BLOCK_M, M)
    cp.commit_group()
    slot = 0
    for tile in range(program, gl.cdiv(M, BLOCK_M), programs):
        first = tile * BLOCK_M
        rows = first + gl.arange(0, BLOCK_M, gl.SliceLayout(1, mma))
        rstd_z, centre_z = _load_stats(STATS_Z, rows, M)
        if HAS_DROP:
            drop = load_drop(DROP, rows, first, M, drop_1, drop_2, drop_rows, C, C, DROP_STEP)
        cp.wait_group(0)
        barrier()
        z_tile, xt = z_tiles.index(slot), x_tiles.index(slot).permute((1, 0))
        wg, wz = wg_tile.permute((1, 0)), wz_tile.permute((1, 0))
        z, xs = z_tile.load(operand), xt.load(operand)
        g = hopper.warpgroup_mma(z, wg, zeros, use_acc=False, is_async=True)
        y = hopper.warpgroup_mma(xs, wz, zeros, use_acc=False, is_async=True)
        after = first + programs * BLOCK_M
        copy_rows(z_tiles.index(1 - slot), Z, after, M, C)
        copy_columns(x_tiles.index(1 - slot), XT, after, M)
        cp.commit_group()
        x = float32(xs)
        mean = gl.sum(x, 1) / E
        x -= mean[:, None]
        rstd = 1.0 / gl.sqrt(gl.sum(x * x, 1) / E + eps)
        x_rows = first + gl.arange(0, BLOCK_M, of_x)
        gl.store(STATS_X + x_rows, mean, mask=x_rows < M)
        gl.store(STATS_X + M + x_rows, rstd, mask=x_rows < M)
        centre = gl.convert_layout(-mean * rstd, gl.SliceLayout(1, mma))
        rstd = gl.convert_layout(rstd, gl.SliceLayout(1, mma))
        g, _ = hopper.warpgroup_mma_wait(1, [g, z])
        sig = sigmoid_of_half(_normalised(g, rstd_z, centre_z, vectors, 2))
        y, _ = hopper.warpgroup_mma_wait(0, [y, xs])
        out = _normalised(y, rstd, centre, vectors, 0) * sig
        if HAS_DROP:
            out *= float32(drop)
        if HAS_RES:
            out += float32(z_tile.load(mma))
        barrier()
        z_tile.store(out.to(dtype))
        barrier()
        store_rows(OUT, z_tile, first, M, C)
        slot = 1 - slot
    cp.wait_group(0)


@gluon.jit
def triangle_out_grad_kernel(
    DOUT, XT, STATS_X, GAMMA_X, BETA_X, WZ, BZ, Z, STATS_Z, GAMMA_Z, BETA_Z, WG, BG, DROP,
    DXT, DGATE, PARTIAL_W, PARTIAL, M, dg_m, drop_1, drop_2, drop_rows,
    C: gl.constexpr, E: gl.constexpr, BLOCK_M: gl.constexpr, HAS_DROP: gl.constexpr,
    DROP_STEP: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Backward of `triangle_out_kernel`; both products are recomputed.

    Writes the gradient of X (channels first), that of the gate before its sigmoid (DGATE,
    row stride dg_m), and each program's sums: PARTIAL_W `[programs, E, C]` of x_hat^T dy, where
    dy is the gradient of the projection and x_hat X without its norm's weights, and PARTIAL
    `[programs, 2C]` of dy and of DGATE.
    The norm's gradient needs two means over E; as
    d x_hat = dy W' and y = W' x_hat, both are sums over C of dy:
    sum_e d x_hat = dy (W' 1) and sum_e d x_hat x_hat = dy y.
    """
    dtype: gl.constexpr = Z.dtype.element_ty
    mma: gl.constexpr = mma_layout(BLOCK_M, C, num_warps)
    x_mma: gl.constexpr = mma_layout(E, BLOCK_M, num_warps)
    w_mma: gl.constexpr = mma_layout(E, C, num_warps)
    of_c: gl.constexpr = gl.SliceLayout(0, mma)
    of_x: gl.constexpr = gl.SliceLayout(0, x_mma)
    x_lines: gl.constexpr = lines_of(BLOCK_M, num_warps)
    wz_tile, wg_tile = tiles_of(dtype, 1, C, E).index(0), tiles_of(dtype, 1, C, C).index(0)
    vectors = vectors_of(4, C)
    _store_folded(wz_tile, vectors, 0, WZ, BZ, GAMMA_X, BETA_X, 1.0)
    _store_folded(wg_tile, vectors, 2, WG, BG, GAMMA_Z, BETA_Z, HALF)
    x_tiles, z_tiles = tiles_of(dtype, 2, E, BLOCK_M), tiles_of(dtype, 2, BLOCK_M, C)
    d_tiles = tiles_of(dtype, 2, BLOCK_M, C)
    program, programs = gl.program_id(0), gl.num_programs(0)
    zeros = gl.full([BLOCK_M, C], 0.0, gl.float32, mma)
    x_zeros = gl.full([E, BLOCK_M], 0.0, gl.float32, x_mma)
    dw = gl.full([E, C], 0.0, gl.float32, w_mma)
    sum_y, sum_gate = zero_sums(BLOCK_M, C), zero_sums(BLOCK_M, C)
    start = program * BLOCK_M
    copy_rows(z_tiles.index(0), Z, start, M, C)
    copy_columns(x_tiles.index(0), XT, start, M)
    copy_rows(d_tiles.index(0), DOUT, start, M, C)
    cp.commit_group()
    slot = 0
    for tile in range(program, gl.cdiv(M, BLOCK_M), programs):
        first = tile * BLOCK_M
        rows = first + gl.arange(0, BLOCK_M, gl.SliceLayout(1, mma))
        rstd_z, centre_z = _load_stats(STATS_Z, rows, M)
        m = first + gl.arange(0, BLOCK_M, gl.SliceLayout(0, x_lines))
        rstd, centre = _load_stats(STATS_X, m, M)
        cp.wait_group(0)
        hopper.fence_async_shared()
        barrier()
        x_tile, z_tile, d_tile = x_tiles.index(slot), z_tiles.index(slot), d_tiles.index(slot)
        g = hopper.warpgroup_mma(
            z_tile, wg_tile.permute((1, 0)), zeros, use_acc=False, is_async=True
        )
        if HAS_DROP:
            drop = load_drop(DROP, rows, first, M, drop_1, drop_2, drop_rows, C, C, DROP_STEP)
        after = first + programs * BLOCK_M
        copy_rows(z_tiles.index(1 - slot), Z, after, M, C)
        copy_columns(x_tiles.index(1 - slot), XT, after, M)
        copy_rows(d_tiles.index(1 - slot), DOUT, after, M, C)
        cp.commit_group()
        x = float32(x_tile.load(x_lines))
        x_tile.store((x * rstd[None, :] + centre[None, :]).to(dtype))
        hopper.fence_async_shared()
        barrier()
        y = hopper.warpgroup_mma(
            x_tile.permute((1, 0)), wz_tile.permute((1, 0)), zeros, use_acc=False, is_async=True
        )
        dy = float32(d_tile.load(mma))
        if HAS_DROP:
            dy *= float32(drop)
        g = hopper.warpgroup_mma_wait(1, [g])
        sig = sigmoid_of_half(_normalised(g, rstd_z, centre_z, vectors, 2))
        dy *= sig
        d_tile.store(dy.to(dtype))
        y = hopper.warpgroup_mma_wait(0, [y])
        z_tile.store((dy * (1.0 - sig) * (y + vectors.index(0).load(of_c)[None, :])).to(dtype))
        dy = rounded(dy, dtype)
        mean_g = gl.sum(dy * vectors.index(1).load(of_c)[None, :], 1) / E
        mean_gx = gl.sum(dy * y, 1) / E
        hopper.fence_async_shared()
        barrier()
        dx = hopper.warpgroup_mma(
            wz_tile.permute((1, 0)), d_tile.permute((1, 0)), x_zeros, use_acc=False, is_async=True
        )
        dw_next = hopper.warpgroup_mma(x_tile, d_tile, dw, is_async=True)
        sum_gate = add_columns(sum_gate, store_rows(DGATE, z_tile, first, M, dg_m))
        sum_y = add_columns(sum_y, d_tile.load(lines_of(C, num_warps)))
        xhat = float32(x_tile.load(x_mma))
        mean_g = gl.convert_layout(mean_g, of_x)[None, :]
        mean_gx = gl.convert_layout(mean_gx, of_x)[None, :]
        rstd = gl.convert_layout(rstd, of_x)[None, :]
        dx, dw = hopper.warpgroup_mma_wait(0, [dx, dw_next])
        dx = rstd * (dx - mean_g - xhat * mean_gx)
        barrier()
        x_tile.store(dx.to(dtype))
        barrier()
        store_columns(DXT, x_tile, first, M)
        slot = 1 - slot
    cp.wait_group(0)
    e = gl.arange(0, E, gl.SliceLayout(1, w_mma))
    c = gl.arange(0, C, gl.SliceLayout(0, w_mma))
    PARTIAL_W += program.to(gl.int64) * E * C
    gl.store(PARTIAL_W + (e[:, None] * C + c[None, :]), dw)
    PARTIAL += program * 2 * C
    store_sums(PARTIAL, sum_y)
    store_sums(PARTIAL + C, sum_gate)
