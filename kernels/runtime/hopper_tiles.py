# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""Parts of Gluon kernels that loop over tiles of rows: copies, sums of columns, layouts.

Letters: M rows, ROWS and COLS of a tile.
"""

from evofeed.kernels.runtime.backend import cp, gl, gluon, mbarrier, tma


@gluon.constexpr_function
def flat():
    """Layout of vectors in shared memory."""
    return gl.SwizzledSharedLayout(1, 1, 1, [0])


@gluon.constexpr_function
def mma_layout(ROWS, COLS, warps):
    """Layout of an accumulator: warps along the rows first, 16 rows each."""
    down = min(warps, ROWS // 16)
    across = warps // down
    return gl.NVMMADistributedLayout([3, 0], [down, across], [16, COLS // across, 16])


@gluon.jit
def tiles_of(dtype: gl.constexpr, COUNT: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr):
    """Shared memory for `COUNT` tiles in tensor-core layout."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, COLS], dtype)
    return gl.allocate_shared_memory(dtype, [COUNT, ROWS, COLS], layout)


@gluon.constexpr_function
def lines_of(COLS, warps):
    """Layout for copies and stores of a tile: 16 bytes a thread, whole rows a warp."""
    per_row = min(COLS // 8, 32)
    return gl.BlockedLayout([1, 8], [32 // per_row, per_row], [warps, 1], [1, 0])


@gluon.constexpr_function
def _rows_at_once(COLS, warps):
    """Rows that all threads hold together in one step of `lines_of`."""
    return 32 // min(COLS // 8, 32) * warps


@gluon.constexpr_function
def _folded(ROWS, COLS, warps):
    """Layout `lines_of` with the rows of one thread as a separate axis."""
    per_row = min(COLS // 8, 32)
    repeats = ROWS // _rows_at_once(COLS, warps)
    return gl.BlockedLayout([repeats, 1, 8], [1, 32 // per_row, per_row], [1, warps, 1], [2, 1, 0])


@gluon.jit
def vectors_of(COUNT: gl.constexpr, SIZE: gl.constexpr):
    """Shared memory for `COUNT` vectors of float32."""
    return gl.allocate_shared_memory(gl.float32, [COUNT, SIZE], flat())


@gluon.jit
def load_vector(vector, PTR, factor):
    """Stores `factor` times the vector at PTR in `vector`."""
    n = gl.arange(0, vector.shape[0], gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    vector.store(gl.load(PTR + n).to(gl.float32) * factor)


@gluon.jit
def _row_pointers(PTR, first, M, stride, ROWS: gl.constexpr, COLS: gl.constexpr):
    """Pointers to rows from `first` on, and which are below M; 32 bits are enough within a tile."""
    layout: gl.constexpr = lines_of(COLS, gl.num_warps())
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    c = gl.arange(0, COLS, gl.SliceLayout(0, layout))
    pointers = (PTR + gl.to_tensor(first).to(gl.int64) * stride) + (
        rows[:, None] * stride + c[None, :]
    )
    return pointers, (rows < M - first)[:, None]


@gluon.jit
def _column_pointers(PTR, first, M, ROWS: gl.constexpr, COLS: gl.constexpr):
    """Pointers to columns from `first` on of a contiguous `[ROWS, M]`, and which are below M."""
    layout: gl.constexpr = lines_of(COLS, gl.num_warps())
    e = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    m = gl.arange(0, COLS, gl.SliceLayout(0, layout))
    return PTR + first + (e[:, None] * M + m[None, :]), (m < M - first)[None, :]


@gluon.jit
def bars_of(COUNT: gl.constexpr):
    """Barriers for copies into shared memory, of one arrival each."""
    bars = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(COUNT):
        mbarrier.init(bars.index(n), count=1)
    return bars


@gluon.jit
def fetch(tile, source, row, column, bar, pred):
    """Starts a tile's copy by the copy engine where `pred`; `bar` already expects its bytes."""
    tma.async_copy_global_to_shared(source, [row, column], bar, tile, pred=pred)


@gluon.jit
def copy_rows(tile, PTR, first, M, stride):
    """Starts the copy of rows from `first` on, zeros from M on."""
    pointers, mask = _row_pointers(PTR, first, M, stride, tile.shape[0], tile.shape[1])
    cp.async_copy_global_to_shared(tile, pointers, mask=mask)


@gluon.jit
def copy_columns(tile, PTR, first, M):
    """Starts the copy of columns from `first` on of a contiguous `[ROWS, M]`, zeros from M on."""
    pointers, mask = _column_pointers(PTR, first, M, tile.shape[0], tile.shape[1])
    cp.async_copy_global_to_shared(tile, pointers, mask=mask)


@gluon.jit
def _drop_rows(rows, first, drop_1, drop_2, drop_rows, STEP: gl.constexpr):
    """The shared dropout mask's row for each of a tile's rows, which start at `first`.

    STEP: its step from row to row; -1 where a tile may cross a border.
    """
    if STEP == -1:
        mask_rows = (rows // drop_1) * drop_rows + (rows // drop_2) % drop_rows
    else:
        mask_rows = (
            (first // drop_1) * drop_rows + (first // drop_2) % drop_rows + (rows - first) * STEP
        )
    return mask_rows


@gluon.jit
def load_drop(
    DROP, rows, first, M, drop_1, drop_2, drop_rows, COLS: gl.constexpr, stride, STEP: gl.constexpr
):
    """The shared dropout mask of `rows`, in the layout that `rows` is a slice of."""
    c = gl.arange(0, COLS, gl.SliceLayout(0, rows.type.layout.parent))
    offsets = _drop_rows(rows, first, drop_1, drop_2, drop_rows, STEP).to(gl.int64)[:, None]
    return gl.load(DROP + (offsets * stride + c[None, :]), mask=(rows < M)[:, None], other=0.0)


@gluon.jit
def copy_drop(tile, DROP, first, M, drop_1, drop_2, drop_rows, STEP: gl.constexpr):
    """Starts the copy of the shared dropout mask of a tile's rows."""
    layout: gl.constexpr = lines_of(tile.shape[1], gl.num_warps())
    rows = first + gl.arange(0, tile.shape[0], gl.SliceLayout(1, layout))
    c = gl.arange(0, tile.shape[1], gl.SliceLayout(0, layout))
    offsets = _drop_rows(rows, first, drop_1, drop_2, drop_rows, STEP).to(gl.int64)[:, None]
    cp.async_copy_global_to_shared(
        tile, DROP + (offsets * tile.shape[1] + c[None, :]), mask=(rows < M)[:, None]
    )


@gluon.jit
def float32(x):
    """x in float32; two instructions for a pair of bfloat16 instead of three."""
    if x.dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 lo, hi; shl.b32 lo, $2, 16; and.b32 hi, $2, 0xffff0000; "
            "mov.b32 $0, lo; mov.b32 $1, hi; }",
            "=f,=f,r", [x], dtype=gl.float32, is_pure=True, pack=2,
        )  # fmt: skip
    return x.to(gl.float32)


@gluon.jit
def rounded(x, dtype: gl.constexpr):
    """Float32 x rounded to a 16-bit type, pairs of bfloat16 in one conversion."""
    if dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 both, lo, hi; cvt.rn.bf16x2.f32 both, $3, $2; shl.b32 lo, both, 16; "
            "and.b32 hi, both, 0xffff0000; mov.b32 $0, lo; mov.b32 $1, hi; }",
            "=f,=f,f,f", [x], dtype=gl.float32, is_pure=True, pack=2,
        )  # fmt: skip
    return x.to(dtype).to(gl.float32)


@gluon.jit
def tanh(x):
    """tanh by one special function; the error is up to 2^-11."""
    return gl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def sigmoid_of_half(x):
    """The sigmoid of 2x by one special function.

    The error is up to 2^-12, a sixteenth of bfloat16's rounding below 1.
    """
    return tanh(x) * 0.5 + 0.5


@gluon.jit
def store_rows(PTR, tile, first, M, stride):
    """Stores a tile as rows from `first` on, 16 bytes a thread; returns its numbers."""
    x = tile.load(lines_of(tile.shape[1], gl.num_warps()))
    pointers, mask = _row_pointers(PTR, first, M, stride, tile.shape[0], tile.shape[1])
    gl.store(pointers, x, mask=mask)
    return x


@gluon.jit
def store_columns(PTR, tile, first, M):
    """Stores a tile as columns from `first` on of a contiguous `[ROWS, M]`."""
    x = tile.load(lines_of(tile.shape[1], gl.num_warps()))
    pointers, mask = _column_pointers(PTR, first, M, tile.shape[0], tile.shape[1])
    gl.store(pointers, x, mask=mask)


@gluon.jit
def zero_sums(ROWS: gl.constexpr, COLS: gl.constexpr):
    """Zeros for `add_columns`, a row for each that is added at once."""
    layout: gl.constexpr = gl.SliceLayout(0, _folded(ROWS, COLS, gl.num_warps()))
    return gl.full([_rows_at_once(COLS, gl.num_warps()), COLS], 0.0, gl.float32, layout)


@gluon.jit
def add_columns(sums, x):
    """`sums` plus a tile in the layout `lines_of`: each thread adds the rows that it holds."""
    ROWS: gl.constexpr = x.shape[0]
    COLS: gl.constexpr = x.shape[1]
    AT_ONCE: gl.constexpr = sums.shape[0]
    layout: gl.constexpr = _folded(ROWS, COLS, gl.num_warps())
    x = gl.reshape(x, [ROWS // AT_ONCE, AT_ONCE, COLS])
    x = gl.convert_layout(x, layout, assert_trivial=True)
    return sums + gl.sum(float32(x), 0)


@gluon.jit
def store_sums(PTR, sums):
    """Stores the column sums of `add_columns`."""
    total = gl.sum(sums, 0)
    n = gl.arange(0, total.shape[0], total.type.layout)
    gl.store(PTR + n, total)
