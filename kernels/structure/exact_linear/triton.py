# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""The kernel of small float32 products, and what is done beside it.

Letters: B and Z products of M, N and K.
"""

from evofeed.kernels.runtime.backend import tl, triton


@triton.jit
def exact_product_kernel(
    A, B, BIAS, PLUS, MASK, OUT, SUMS, batch, Z, M, N, K, k_each, sa_b, sa_z, sa_m, sa_k,
    sb_b, sb_z, sb_n, sb_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_PLUS: tl.constexpr, RELU: tl.constexpr, MASKED: tl.constexpr, HAS_SUMS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """OUT `[parts, B, Z, M, N]` = A B^T + BIAS + PLUS, with RELU its positive part.

    A part has k_each of K, the first one BIAS. With MASKED A counts only where MASK, which lies
    as A, is positive. SUMS `[M]`: of A's rows. batch: B Z.
    """
    part, both = tl.program_id(2) // batch, tl.program_id(2) % batch
    b, z = (both // Z).to(tl.int64), (both % Z).to(tl.int64)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_in, n_in = m < M, n < N
    m64, n64 = m.to(tl.int64), n.to(tl.int64)
    of_a, of_b = b * sa_b + z * sa_z, b * sb_b + z * sb_z
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    sums = tl.zeros([BLOCK_M], tl.float32)
    for first in range(part * k_each, tl.minimum((part + 1) * k_each, K), BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        k64, k_in = k.to(tl.int64), k < K
        at = of_a + (m64[:, None] * sa_m + k64[None, :] * sa_k)
        inside = m_in[:, None] & k_in[None, :]
        left = tl.load(A + at, mask=inside, other=0.0)
        if MASKED:
            left = tl.where(tl.load(MASK + at, mask=inside, other=0.0) > 0, left, 0.0)
        right = tl.load(B + of_b + (k64[:, None] * sb_k + n64[None, :] * sb_n),
                        mask=k_in[:, None] & n_in[None, :], other=0.0)  # fmt: skip
        acc = tl.dot(left, right, acc, input_precision=PRECISION)
        if HAS_SUMS:
            sums += tl.sum(left, 1)
    inside = m_in[:, None] & n_in[None, :]
    to = tl.program_id(2).to(tl.int64) * M * N + (m64[:, None] * N + n64[None, :])
    if HAS_BIAS:
        acc += tl.load(BIAS + n, mask=n_in & (part == 0), other=0.0)[None, :]
    if HAS_PLUS:
        acc += tl.load(PLUS + to, mask=inside, other=0.0)
    if RELU:
        acc = tl.maximum(acc, 0.0)
    tl.store(OUT + to, acc, mask=inside)
    if HAS_SUMS:
        tl.store(SUMS + m, sums, mask=m_in & (tl.program_id(1) == 0))
