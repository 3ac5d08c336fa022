# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""One kernel for every exchange between GPUs that can read each other's memory.

Each program writes its share of the data into the peers' slots, raises a flag for the same program
of each peer, waits for the peers' flags, and reads its share of its local slot. Remote writes need
not wait for an answer, as remote reads would. Slots alternate: once a rank has passed the flags of
an exchange, all ranks have finished reading the slot of the exchange before. The slot follows from
a count in memory, so recordings can be replayed in any order.

Letters: W the axis that is split, A before and B behind it in `X`; V the axis that is joined, D
before and E behind it in `OUT`.
"""

from __future__ import annotations

from evofeed.kernels.runtime.backend import tl, triton

MAX_PEERS = 8  # GPUs of a host


@triton.jit
def _part(length, n: tl.constexpr, SIZE: tl.constexpr):
    """Start and length of part n of an axis."""
    size = length // SIZE
    longer = length % SIZE
    return n * size + tl.minimum(n, longer), size + tl.where(n < longer, 1, 0)


@triton.jit
def _nth(n: tl.constexpr, P0, P1, P2, P3, P4, P5, P6, P7):
    """The n-th of eight pointers."""
    if n < 4:
        chosen = (P0 if n == 0 else P1) if n < 2 else (P2 if n == 2 else P3)
    else:
        chosen = (P4 if n == 4 else P5) if n < 6 else (P6 if n == 6 else P7)
    return chosen


@triton.jit
def _offsets(positions, run, stride, VEC: tl.constexpr):
    """Offsets of groups of VEC numbers, counted by `positions`, in runs `stride` numbers apart."""
    per_run = run // VEC
    rows = positions // per_run
    offsets = rows * (stride // VEC) + (positions - rows * per_run)
    return offsets[:, None] * VEC + tl.arange(0, VEC)[None, :]


@triton.jit
def _copy(
    FROM, from_run, from_stride, TO, to_run, to_stride, count, VEC: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Copies this program's share of `count` numbers."""
    groups = count // VEC
    share = tl.cdiv(groups, tl.num_programs(0))
    first = tl.program_id(0) * share
    last = tl.minimum(first + share, groups)
    for start in range(first, last, BLOCK):
        positions = start + tl.arange(0, BLOCK)
        inside = (positions < last)[:, None]
        x = tl.load(FROM + _offsets(positions, from_run, from_stride, VEC), mask=inside)
        tl.store(TO + _offsets(positions, to_run, to_stride, VEC), x, mask=inside)


@triton.jit
def peer_exchange_kernel(
    X, OUT, COUNT, D0, D1, D2, D3, D4, D5, D6, D7, F0, F1, F2, F3, F4, F5, F6, F7,
    A, W, B, D, V, E, others, SLOT,
    RANK: tl.constexpr, SIZE: tl.constexpr, MODE: tl.constexpr, VEC: tl.constexpr,
    BLOCK: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """OUT from all ranks' X, by SIZE slots D and flags F.

    In an exchange, `others` is the product of all axes except W and V.
    """
    g = tl.program_id(0)
    programs = tl.num_programs(0)
    count = tl.load(COUNT + g) + 1
    parity = (count & 1) * SLOT
    slot = _nth(RANK, D0, D1, D2, D3, D4, D5, D6, D7) + parity
    flags = _nth(RANK, F0, F1, F2, F3, F4, F5, F6, F7)
    start_w, n_w = _part(W, RANK, SIZE)
    start_v, n_v = _part(V, RANK, SIZE)
    for p in tl.static_range(SIZE):
        if p != RANK:
            remote = _nth(p, D0, D1, D2, D3, D4, D5, D6, D7) + parity
            if MODE == "gather":
                numel = A * W * B
                _copy(X, numel, numel, remote + start_v * D * E, numel, numel, numel, VEC, BLOCK)
            else:
                start, n = _part(W, p, SIZE)
                numel = A * n * B
                remote += RANK * numel if MODE == "reduce" else start_v * others * n
                _copy(X + start * B, n * B, W * B, remote, numel, numel, numel, VEC, BLOCK)
    tl.debug_barrier()  # this program's data must be written before its flags
    for p in tl.static_range(SIZE):
        if p != RANK:
            remote_flags = _nth(p, F0, F1, F2, F3, F4, F5, F6, F7)
            tl.atomic_xchg(remote_flags + RANK * programs + g, count, sem="release", scope="sys")
    if MODE == "exchange":
        _copy(X + start_w * B, n_w * B, W * B, OUT + start_v * E, n_v * E, V * E, A * n_w * B,
              VEC, BLOCK)  # fmt: skip
    elif MODE == "gather":
        numel = A * W * B
        _copy(X, numel, numel, OUT + start_v * E, n_v * E, V * E, numel, VEC, BLOCK)
    for p in tl.static_range(SIZE):
        if p != RANK:
            raised = tl.atomic_add(flags + p * programs + g, 0, sem="acquire", scope="sys")
            while raised - count < 0:
                raised = tl.atomic_add(flags + p * programs + g, 0, sem="acquire", scope="sys")
    tl.debug_barrier()
    if MODE == "reduce":
        numel = A * n_w * B
        groups = numel // VEC
        share = tl.cdiv(groups, programs)
        last = tl.minimum((g + 1) * share, groups)
        for start in range(g * share, last, BLOCK):
            positions = start + tl.arange(0, BLOCK)
            inside = (positions < last)[:, None]
            flat = positions[:, None] * VEC + tl.arange(0, VEC)[None, :]
            total = tl.zeros([BLOCK, VEC], tl.float64 if PRECISE else tl.float32)
            for p in tl.static_range(SIZE):  # in the same order on every GPU
                if p == RANK:
                    part = X + start_w * B + _offsets(positions, n_w * B, W * B, VEC)
                else:
                    part = slot + p * numel + flat
                total += tl.load(part, mask=inside, other=0.0)
            tl.store(OUT + flat, total.to(OUT.dtype.element_ty), mask=inside)
    else:
        for p in tl.static_range(SIZE):
            if p != RANK:
                start, n = _part(V, p, SIZE)
                numel = D * n * E
                _copy(slot + start * D * E, numel, numel, OUT + start * E, n * E, V * E, numel,
                      VEC, BLOCK)  # fmt: skip
    tl.store(COUNT + g, count)
