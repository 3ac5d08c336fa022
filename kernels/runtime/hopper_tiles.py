# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""Parts of Gluon kernels that walk over tiles of rows: copies, sums of columns, layouts.

Letters: M rows, ROWS and COLS of a tile.
"""

from evofeed.kernels.runtime.backend import cp, gl, gluon, mbarrier, tma


@gluon.constexpr_function
def flat():
    """Layout of lines in shared memory."""
    return gl.SwizzledSharedLayout(1, 1, 1, [0])


@gluon.constexpr_function
def mma_layout(ROWS, COLS, warps):
    """Layout of an accumulator: warps down the rows first, 16 rows each."""
    down = min(warps, ROWS // 16)
    across = warps // down
    return gl.NVMMADistributedLayout([3, 0], [down, across], [16, COLS // across, 16])


@gluon.jit
def tiles_of(dtype: gl.constexpr, COUNT: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr):
    """Shared memory for `COUNT` tiles that tensor cores read."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, COLS], dtype)
    return gl.allocate_shared_memory(dtype, [COUNT, ROWS, COLS], layout)


@gluon.constexpr_function
def lines_of(COLS, warps):
    """Layout in which a tile is copied and stored: 16 bytes a thread, whole lines a warp."""
    per_row = min(COLS // 8, 32)
    return gl.BlockedLayout([1, 8], [32 // per_row, per_row], [warps, 1], [1, 0])


@gluon.constexpr_function
def _at_once(COLS, warps):
    """Rows that all threads hold at once in that layout."""
    return 32 // min(COLS // 8, 32) * warps


@gluon.constexpr_function
def _folded(ROWS, COLS, warps):
    """That layout with the rows of one thread as an axis of their own."""
    per_row = min(COLS // 8, 32)
    repeats = ROWS // _at_once(COLS, warps)
    return gl.BlockedLayout([repeats, 1, 8], [1, 32 // per_row, per_row], [1, warps, 1], [2, 1, 0])


@gluon.jit
def vectors_of(COUNT: gl.constexpr, SIZE: gl.constexpr):
    """Shared memory for `COUNT` vectors of float32."""
    return gl.allocate_shared_memory(gl.float32, [COUNT, SIZE], flat())


@gluon.jit
def keep_vector(vector, PTR, factor):
    """`vector` becomes `factor` times what PTR has."""
    n = gl.arange(0, vector.shape[0], gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    vector.store(gl.load(PTR + n).to(gl.float32) * factor)


@gluon.jit
def _rows_at(PTR, first, M, stride, ROWS: gl.constexpr, COLS: gl.constexpr):
    """Where rows `first` and on of M are, and which exist; within a tile 32 bits are enough."""
    layout: gl.constexpr = lines_of(COLS, gl.num_warps())
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    c = gl.arange(0, COLS, gl.SliceLayout(0, layout))
    at = (PTR + gl.to_tensor(first).to(gl.int64) * stride) + (rows[:, None] * stride + c[None, :])
    return at, (rows < M - first)[:, None]


@gluon.jit
def _columns_at(PTR, first, M, ROWS: gl.constexpr, COLS: gl.constexpr):
    """Where columns `first` and on of a contiguous `[ROWS, M]` are, and which exist."""
    layout: gl.constexpr = lines_of(COLS, gl.num_warps())
    e = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    m = gl.arange(0, COLS, gl.SliceLayout(0, layout))
    return PTR + first + (e[:, None] * M + m[None, :]), (m < M - first)[None, :]


@gluon.jit
def bars_of(COUNT: gl.constexpr, ARRIVALS: gl.constexpr = 1):
    """Barriers that say whether a copy into shared memory has ended; each is met in turn.

    ARRIVALS: how many must have come.
    """
    bars = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(COUNT):
        mbarrier.init(bars.index(n), count=ARRIVALS)
    return bars


@gluon.jit
def fetch(tile, source, row, column, bar, there):
    """The copy engine copies a tile, if it is there; `bar` was told to expect its bytes."""
    tma.async_copy_global_to_shared(source, [row, column], bar, tile, pred=there)


@gluon.jit
def copy_rows(tile, PTR, first, M, stride):
    """Starts the copy of rows `first` and on of M; others are 0."""
    at, there = _rows_at(PTR, first, M, stride, tile.shape[0], tile.shape[1])
    cp.async_copy_global_to_shared(tile, at, mask=there)


@gluon.jit
def copy_columns(tile, PTR, first, M):
    """Starts the copy of columns `first` and on of a contiguous `[ROWS, M]`; others are 0."""
    at, there = _columns_at(PTR, first, M, tile.shape[0], tile.shape[1])
    cp.async_copy_global_to_shared(tile, at, mask=there)


@gluon.jit
def _drop_rows(rows, first, drop_1, drop_2, drop_rows, STEP: gl.constexpr):
    """Which row of the shared dropout mask each of a tile's rows `first` and on has.

    STEP: by how much it moves from row to row; -1 where a tile may cross a border.
    """
    if STEP == -1:
        at = (rows // drop_1) * drop_rows + (rows // drop_2) % drop_rows
    else:
        at = (first // drop_1) * drop_rows + (first // drop_2) % drop_rows + (rows - first) * STEP
    return at


@gluon.jit
def load_drop(
    DROP, rows, first, M, drop_1, drop_2, drop_rows, COLS: gl.constexpr, stride, STEP: gl.constexpr
):
    """Each row's row of the shared dropout mask, in the layout that `rows` is a slice of."""
    c = gl.arange(0, COLS, gl.SliceLayout(0, rows.type.layout.parent))
    at = _drop_rows(rows, first, drop_1, drop_2, drop_rows, STEP).to(gl.int64)[:, None]
    return gl.load(DROP + (at * stride + c[None, :]), mask=(rows < M)[:, None], other=0.0)


@gluon.jit
def copy_drop(tile, DROP, first, M, drop_1, drop_2, drop_rows, STEP: gl.constexpr):
    """Starts the copy of each row's row of the shared dropout mask."""
    layout: gl.constexpr = lines_of(tile.shape[1], gl.num_warps())
    rows = first + gl.arange(0, tile.shape[0], gl.SliceLayout(1, layout))
    c = gl.arange(0, tile.shape[1], gl.SliceLayout(0, layout))
    at = _drop_rows(rows, first, drop_1, drop_2, drop_rows, STEP).to(gl.int64)[:, None]
    cp.async_copy_global_to_shared(
        tile, DROP + (at * tile.shape[1] + c[None, :]), mask=(rows < M)[:, None]
    )


@gluon.jit
def float32(x):
    """x in float32; a pair of bfloat16 costs two instructions, not three."""
    if x.dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 lo, hi; shl.b32 lo, $2, 16; and.b32 hi, $2, 0xffff0000; "
            "mov.b32 $0, lo; mov.b32 $1, hi; }",
            "=f,=f,r", [x], dtype=gl.float32, is_pure=True, pack=2,
        )  # fmt: skip
    return x.to(gl.float32)


@gluon.jit
def rounded(x, dtype: gl.constexpr):
    """Float32 x rounded to a 16-bit type; a pair of bfloat16 is not converted one by one."""
    if dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 both, lo, hi; cvt.rn.bf16x2.f32 both, $3, $2; shl.b32 lo, both, 16; "
            "and.b32 hi, both, 0xffff0000; mov.b32 $0, lo; mov.b32 $1, hi; }",
            "=f,=f,f,f", [x], dtype=gl.float32, is_pure=True, pack=2,
        )  # fmt: skip
    return x.to(dtype).to(gl.float32)


@gluon.jit
def tanh(x):
    """In one special function, off by 2^-11."""
    return gl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def sigmoid_of_half(x):
    """The sigmoid of 2x in one special function.

    Off by 2^-12, a sixteenth of what bfloat16 rounds by below 1.
    """
    return tanh(x) * 0.5 + 0.5


@gluon.jit
def store_rows(PTR, tile, first, M, stride):
    """Stores a tile as rows `first` and on, lines of 16 bytes a thread; returns it."""
    x = tile.load(lines_of(tile.shape[1], gl.num_warps()))
    to, there = _rows_at(PTR, first, M, stride, tile.shape[0], tile.shape[1])
    gl.store(to, x, mask=there)
    return x


@gluon.jit
def store_columns(PTR, tile, first, M):
    """Stores a tile as columns `first` and on of a contiguous `[ROWS, M]`."""
    x = tile.load(lines_of(tile.shape[1], gl.num_warps()))
    to, there = _columns_at(PTR, first, M, tile.shape[0], tile.shape[1])
    gl.store(to, x, mask=there)


@gluon.jit
def no_sums(ROWS: gl.constexpr, COLS: gl.constexpr):
    """Zeros to add a tile's columns to, some rows at once."""
    layout: gl.constexpr = gl.SliceLayout(0, _folded(ROWS, COLS, gl.num_warps()))
    return gl.full([_at_once(COLS, gl.num_warps()), COLS], 0.0, gl.float32, layout)


@gluon.jit
def add_columns(sums, x):
    """`sums` plus a tile in the layout of `lines_of`: every thread adds up its own rows."""
    ROWS: gl.constexpr = x.shape[0]
    COLS: gl.constexpr = x.shape[1]
    AT_ONCE: gl.constexpr = sums.shape[0]
    layout: gl.constexpr = _folded(ROWS, COLS, gl.num_warps())
    x = gl.reshape(x, [ROWS // AT_ONCE, AT_ONCE, COLS])
    x = gl.convert_layout(x, layout, assert_trivial=True)
    return sums + gl.sum(float32(x), 0)


@gluon.jit
def store_sums(PTR, sums):
    """Stores the sums of columns that `add_columns` gathered."""
    total = gl.sum(sums, 0)
    n = gl.arange(0, total.shape[0], total.type.layout)
    gl.store(PTR + n, total)
