# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""One kernel for every exchange between GPUs that can read each other's memory.

Each program writes its share of what others want into their slots, raises a flag at the same
program of each, waits for theirs, and reads its share of what lies in its own slot. Who writes does
not wait for an answer, as who reads from afar does. Slots alternate: who has passed the flags of an
exchange knows that all have finished reading the one before. Which slot it is follows from a count
in memory, so recordings may be replayed in any order.

Letters: W the axis that is cut, A before and B behind it in `X`; V the axis that is put
together, D before and E behind it in `OUT`.
"""

from __future__ import annotations

from evofeed.kernels.runtime.backend import tl, triton

MOST_PEERS = 8  # GPUs of a host


@triton.jit
def _part(whole, n: tl.constexpr, SIZE: tl.constexpr):
    """First position and length of part n of an axis."""
    least = whole // SIZE
    more = whole % SIZE
    return n * least + tl.minimum(n, more), least + tl.where(n < more, 1, 0)


@triton.jit
def _of(n: tl.constexpr, P0, P1, P2, P3, P4, P5, P6, P7):
    """The n-th of eight."""
    if n < 4:
        chosen = (P0 if n == 0 else P1) if n < 2 else (P2 if n == 2 else P3)
    else:
        chosen = (P4 if n == 4 else P5) if n < 6 else (P6 if n == 6 else P7)
    return chosen


@triton.jit
def _addresses(at, run, stride, VEC: tl.constexpr):
    """Where the numbers number `at`, in groups of VEC, of runs `stride` apart are."""
    groups = run // VEC
    rows = at // groups
    where = rows * (stride // VEC) + (at - rows * groups)
    return where[:, None] * VEC + tl.arange(0, VEC)[None, :]


@triton.jit
def _copy(
    FROM, from_run, from_stride, TO, to_run, to_stride, count, VEC: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """This program's share of `count` numbers."""
    groups = count // VEC
    share = tl.cdiv(groups, tl.num_programs(0))
    first = tl.program_id(0) * share
    last = tl.minimum(first + share, groups)
    for start in range(first, last, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = (at < last)[:, None]
        x = tl.load(FROM + _addresses(at, from_run, from_stride, VEC), mask=inside)
        tl.store(TO + _addresses(at, to_run, to_stride, VEC), x, mask=inside)


@triton.jit
def peer_exchange_kernel(
    X, OUT, COUNT, D0, D1, D2, D3, D4, D5, D6, D7, F0, F1, F2, F3, F4, F5, F6, F7,
    A, W, B, D, V, E, others, SLOT,
    RANK: tl.constexpr, SIZE: tl.constexpr, HOW: tl.constexpr, OWN: tl.constexpr,
    VEC: tl.constexpr, BLOCK: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """OUT from all ranks' X, in SIZE slots D and by SIZE flags F.

    In an exchange, `others` is the product of all axes but W and V.
    """
    g = tl.program_id(0)
    programs = tl.num_programs(0)
    count = tl.load(COUNT + g) + 1
    slot = (count & 1) * SLOT
    mine = _of(RANK, D0, D1, D2, D3, D4, D5, D6, D7) + slot
    flags = _of(RANK, F0, F1, F2, F3, F4, F5, F6, F7)
    own, n_own = _part(W, RANK, SIZE)
    to, n_to = _part(V, RANK, SIZE)
    for p in tl.static_range(SIZE):
        if p != RANK:
            there = _of(p, D0, D1, D2, D3, D4, D5, D6, D7) + slot
            if HOW == "gather":
                numel = A * W * B
                _copy(X, numel, numel, there + to * D * E, numel, numel, numel, VEC, BLOCK)
            else:
                start, n = _part(W, p, SIZE)
                numel = A * n * B
                there += RANK * numel if HOW == "reduce" else to * others * n
                _copy(X + start * B, n * B, W * B, there, numel, numel, numel, VEC, BLOCK)
    tl.debug_barrier()  # all of this program's numbers are written before its flags
    for p in tl.static_range(SIZE):
        if p != RANK:
            theirs = _of(p, F0, F1, F2, F3, F4, F5, F6, F7)
            tl.atomic_xchg(theirs + RANK * programs + g, count, sem="release", scope="sys")
    if OWN:
        if HOW == "exchange":
            _copy(X + own * B, n_own * B, W * B, OUT + to * E, n_to * E, V * E, A * n_own * B,
                  VEC, BLOCK)  # fmt: skip
        elif HOW == "gather":
            numel = A * W * B
            _copy(X, numel, numel, OUT + to * E, n_to * E, V * E, numel, VEC, BLOCK)
    for p in tl.static_range(SIZE):
        if p != RANK:
            raised = tl.atomic_add(flags + p * programs + g, 0, sem="acquire", scope="sys")
            while raised - count < 0:
                raised = tl.atomic_add(flags + p * programs + g, 0, sem="acquire", scope="sys")
    tl.debug_barrier()
    if HOW == "reduce":
        numel = A * n_own * B
        groups = numel // VEC
        share = tl.cdiv(groups, programs)
        last = tl.minimum((g + 1) * share, groups)
        for start in range(g * share, last, BLOCK):
            at = start + tl.arange(0, BLOCK)
            inside = (at < last)[:, None]
            flat = at[:, None] * VEC + tl.arange(0, VEC)[None, :]
            total = tl.zeros([BLOCK, VEC], tl.float64 if PRECISE else tl.float32)
            for p in tl.static_range(SIZE):  # in one order on every GPU
                if p == RANK:
                    part = X + own * B + _addresses(at, n_own * B, W * B, VEC)
                else:
                    part = mine + p * numel + flat
                total += tl.load(part, mask=inside, other=0.0)
            tl.store(OUT + flat, total.to(OUT.dtype.element_ty), mask=inside)
    else:
        for p in tl.static_range(SIZE):
            if p != RANK:
                start, n = _part(V, p, SIZE)
                numel = D * n * E
                _copy(mine + start * D * E, numel, numel, OUT + start * E, n * E, V * E, numel,
                      VEC, BLOCK)  # fmt: skip
    tl.store(COUNT + g, count)
