# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,name-defined"
"""Shared by the attention kernels for Hopper: layouts, copies to shared memory, the bias in pairs.

A bias tile is loaded to the registers that need it, 16 bytes at a time, while the tile before it
is computed. Positions are therefore permuted in shared memory: of each 32, the 8 that one thread
holds of an accumulator's row are contiguous in memory (`interleaved`). A pair of 16-bit numbers
of the bias is one 32-bit number until it is used.

Strides are in units of numbers here; letters as in `triton.py`.
"""

from evofeed.kernels.runtime.backend import cp, gl, gluon


@gluon.constexpr_function
def pairs_layout(ROWS, PAIRS, warps):
    """Layout for loads of a bias tile's pairs: 16 bytes a thread, 16 rows a warp."""
    far = (PAIRS // 16).bit_length() - 1
    registers = [[0, 1], [0, 2], *[[0, 16 << n] for n in range(far)], [8, 0]]
    lanes = [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]]
    down = [[16 << n, 0] for n in range(warps.bit_length() - 1)]
    return gl.DistributedLinearLayout(registers, lanes, down, [], [ROWS, PAIRS])


@gluon.constexpr_function
def copying(COLS, warps):
    """Layout for copies of a tile: 16 bytes a thread."""
    per_row = min(COLS // 8, 8)
    return gl.BlockedLayout([1, 8], [32 // per_row, per_row], [warps, 1], [1, 0])


@gluon.jit
def row_and_head(H):
    """The row and head of this program: heads of a row are consecutive, the last row is first.

    Heads of a row share cache lines, and the product before wrote the last rows last.
    """
    program = gl.num_programs(0) - 1 - gl.program_id(0)
    return program // H, (program % H).to(gl.int64)


@gluon.jit
def interleaved(SIZE: gl.constexpr, layout: gl.constexpr):
    """The position in each row of a tile: a thread's 8 of each 32 positions are contiguous."""
    c = gl.arange(0, SIZE, layout)
    return c // 32 * 32 + c // 2 % 4 * 8 + c // 8 % 4 * 2 + c % 2


@gluon.jit
def _tile_pointers(
    PTR, first, rows, N, stride, WIDTH: gl.constexpr, D: gl.constexpr, WIDE: gl.constexpr
):
    """Pointers to rows `first + rows` of D numbers, and which exist.

    WIDE: `first` times the stride may exceed 2^31; within a tile 32 bits are enough.
    """
    d = gl.arange(0, WIDTH, gl.SliceLayout(0, rows.type.layout.parent))
    if WIDE:
        PTR += gl.to_tensor(first).to(gl.int64) * stride
        N -= first
    else:
        rows = first + rows
    return PTR + (rows[:, None] * stride + d[None, :]), (rows < N)[:, None] & (d < D)[None, :]


@gluon.jit
def _rows_of(SIZE: gl.constexpr, layout: gl.constexpr, INTERLEAVED: gl.constexpr):
    """Positions of a tile's rows, or of a vector's numbers."""
    return interleaved(SIZE, layout) if INTERLEAVED else gl.arange(0, SIZE, layout)


@gluon.jit
def copy_rows(
    tile,
    PTR,
    first,
    N,
    stride,
    D: gl.constexpr,
    WIDE: gl.constexpr,
    INTERLEAVED: gl.constexpr = False,
):
    """Starts the copy of rows of D numbers into a tile, zeros outside.

    INTERLEAVED: in the order of `interleaved`.
    """
    layout: gl.constexpr = copying(tile.shape[1], gl.num_warps())
    rows = _rows_of(tile.shape[0], gl.SliceLayout(1, layout), INTERLEAVED)
    pointers, inside = _tile_pointers(PTR, first, rows, N, stride, tile.shape[1], D, WIDE)
    cp.async_copy_global_to_shared(tile, pointers, mask=inside)


@gluon.jit
def copy_vector(vector, PTR, first, N, PER: gl.constexpr, INTERLEAVED: gl.constexpr = False):
    """Starts the copy of a vector, `PER` numbers a thread."""
    layout: gl.constexpr = gl.BlockedLayout([PER], [32], [gl.num_warps()], [0])
    n = first + _rows_of(vector.shape[0], layout, INTERLEAVED)
    cp.async_copy_global_to_shared(vector, PTR + n, mask=n < N)


@gluon.constexpr_function
def _in_lines(COLS, layout):
    """True if four threads hold 32 numbers of a row, and can store 16 bytes each."""
    return layout.version[0] == 3 and COLS // layout.warps_per_cta[1] % 32 == 0


@gluon.constexpr_function
def _storing(ROWS, COLS, layout):
    """Layout for those stores."""
    down, across = layout.warps_per_cta
    columns = [[0, 32 << n] for n in range((COLS // across // 32).bit_length() - 1)]
    rows = [[16 * down << n, 0] for n in range((ROWS // (16 * down)).bit_length() - 1)]
    registers = [[0, 1], [0, 2], [0, 4], [8, 0], *columns, *rows]
    lanes = [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]]
    warps = [[16 << n, 0] for n in range(down.bit_length() - 1)]
    warps += [[0, COLS // across << n] for n in range(across.bit_length() - 1)]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [ROWS, COLS])


# a0 to a3: pairs of row r, b0 to b3: pairs of row r + 8
_EXCHANGE: gl.constexpr = gl.constexpr("""{
.reg .pred p, q; .reg .b32 lane, s0, s1, s2, s3, a0, a1, a2, a3, b0, b1, b2, b3;
mov.u32 lane, %laneid; and.b32 s0, lane, 1; and.b32 s1, lane, 2;
setp.ne.u32 p, s0, 0; setp.ne.u32 q, s1, 0;
selp.b32 s0, $8, $10, p; selp.b32 s1, $12, $14, p;
selp.b32 s2, $9, $11, p; selp.b32 s3, $13, $15, p;
shfl.sync.bfly.b32 s0, s0, 1, 31, -1; shfl.sync.bfly.b32 s1, s1, 1, 31, -1;
shfl.sync.bfly.b32 s2, s2, 1, 31, -1; shfl.sync.bfly.b32 s3, s3, 1, 31, -1;
selp.b32 a0, s0, $8, p; selp.b32 a1, $10, s0, p; selp.b32 a2, s1, $12, p; selp.b32 a3, $14, s1, p;
selp.b32 b0, s2, $9, p; selp.b32 b1, $11, s2, p; selp.b32 b2, s3, $13, p; selp.b32 b3, $15, s3, p;
selp.b32 s0, a0, a2, q; selp.b32 s1, a1, a3, q; selp.b32 s2, b0, b2, q; selp.b32 s3, b1, b3, q;
shfl.sync.bfly.b32 s0, s0, 2, 31, -1; shfl.sync.bfly.b32 s1, s1, 2, 31, -1;
shfl.sync.bfly.b32 s2, s2, 2, 31, -1; shfl.sync.bfly.b32 s3, s3, 2, 31, -1;
selp.b32 $0, s0, a0, q; selp.b32 $4, a2, s0, q; selp.b32 $2, s1, a1, q; selp.b32 $6, a3, s1, q;
selp.b32 $1, s2, b0, q; selp.b32 $5, b2, s2, q; selp.b32 $3, s3, b1, q; selp.b32 $7, b3, s3, q;
}""")


@gluon.jit
def _exchanged(x):
    """A 4 x 4 transposition of four threads' pairs of 32 columns.

    Pair j of thread t becomes pair t of thread j, in rows r and r + 8.
    """
    return gl.inline_asm_elementwise(
        _EXCHANGE, "=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r,r,r,r,r", [x],
        dtype=x.dtype, is_pure=True, pack=16,
    )  # fmt: skip


@gluon.jit
def put(
    PTR, x, first, N, stride, layout: gl.constexpr, D: gl.constexpr, WIDE: gl.constexpr,
    INTERLEAVED: gl.constexpr = False,
):  # fmt: skip
    """Stores rows of D numbers, which may be in the order of `interleaved`."""
    x = x.to(PTR.dtype.element_ty)
    if _in_lines(x.shape[1], layout):
        lines: gl.constexpr = _storing(x.shape[0], x.shape[1], layout)
        rows = _rows_of(x.shape[0], gl.SliceLayout(1, lines), INTERLEAVED)
        x = of_memory(_exchanged(x), lines)
    else:
        rows = _rows_of(x.shape[0], gl.SliceLayout(1, layout), INTERLEAVED)
    pointers, inside = _tile_pointers(PTR, first, rows, N, stride, x.shape[1], D, WIDE)
    gl.store(pointers, x, mask=inside)


@gluon.jit
def in_pairs(PTR):
    """A pointer to 16-bit numbers as one to pairs of them."""
    return PTR.to(gl.pointer_type(gl.int32), bitcast=True)


@gluon.jit
def load_pairs(
    BIAS, row, column, N, stride, ROWS: gl.constexpr, PAIRS: gl.constexpr,
    layout: gl.constexpr, PAD: gl.constexpr,
):  # fmt: skip
    """Pairs of a bias tile; columns up to the stride may be read."""
    r = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    c = column // 2 + gl.arange(0, PAIRS, gl.SliceLayout(0, layout))
    pointers = BIAS + (r[:, None] * (stride // 2) + c[None, :])
    if PAD:
        pairs = gl.load(pointers, mask=(r < N)[:, None] & (c < stride // 2)[None, :], other=0)
    else:
        pairs = gl.load(pointers)
    return pairs


@gluon.jit
def unpacked(pairs, dtype: gl.constexpr):
    """The first and the second number of each pair, in float32."""
    if dtype == gl.bfloat16:
        numbers = gl.inline_asm_elementwise(
            "{ shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000; }",
            "=r,=r,r", [pairs], dtype=(gl.float32, gl.float32), is_pure=True, pack=1,
        )  # fmt: skip
    else:
        numbers = gl.inline_asm_elementwise(
            "{ .reg .b16 a, b; mov.b32 {a, b}, $2; cvt.f32.f16 $0, a; cvt.f32.f16 $1, b; }",
            "=f,=f,r", [pairs], dtype=(gl.float32, gl.float32), is_pure=True, pack=1,
        )  # fmt: skip
    return numbers


@gluon.jit
def sum_of_pairs(x, y, dtype: gl.constexpr):
    """x + y in their type, then in float32 the first and the second number of each pair."""
    x, y = gl.broadcast(x, y)
    if dtype == gl.bfloat16:
        numbers = gl.inline_asm_elementwise(
            "{ .reg .b32 s; add.rn.bf16x2 s, $2, $3; "
            "shl.b32 $0, s, 16; and.b32 $1, s, 0xffff0000; }",
            "=r,=r,r,r", [x, y], dtype=(gl.float32, gl.float32), is_pure=True, pack=1,
        )  # fmt: skip
    else:
        numbers = gl.inline_asm_elementwise(
            "{ .reg .b32 s; .reg .b16 a, b; add.rn.f16x2 s, $2, $3; "
            "mov.b32 {a, b}, s; cvt.f32.f16 $0, a; cvt.f32.f16 $1, b; }",
            "=f,=f,r,r", [x, y], dtype=(gl.float32, gl.float32), is_pure=True, pack=1,
        )  # fmt: skip
    return numbers


@gluon.jit
def as_logits(numbers, layout: gl.constexpr):
    """First and second numbers of pairs as a tile of logits, without exchange between threads."""
    first, second = numbers
    ROWS: gl.constexpr = first.shape[0]
    GROUPS: gl.constexpr = first.shape[1] // 16
    x = gl.join(first, second).reshape([ROWS, GROUPS, 4, 4, 2]).permute((0, 1, 3, 2, 4))
    return gl.convert_layout(x.reshape([ROWS, GROUPS * 32]), layout, assert_trivial=True)


@gluon.jit
def of_memory(x, layout: gl.constexpr):
    """A tile of logits with its columns in memory order, without exchange between threads."""
    ROWS: gl.constexpr = x.shape[0]
    GROUPS: gl.constexpr = x.shape[1] // 32
    x = x.reshape([ROWS, GROUPS, 4, 4, 2]).permute((0, 1, 3, 2, 4))
    return gl.convert_layout(x.reshape([ROWS, GROUPS * 32]), layout, assert_trivial=True)


@gluon.jit
def store_extra(tile, lses, deltas, inverse):
    """Stores the 16 columns of a query tile that are multiplied with the keys' extra columns.

    0 to 2: -lse / factor, as a sum of three 16-bit numbers; 3: one; 4 to 6: -delta likewise.
    """
    layout: gl.constexpr = gl.BlockedLayout([1, 16], [32, 1], [gl.num_warps(), 1], [1, 0])
    of_query: gl.constexpr = gl.SliceLayout(1, layout)
    dtype: gl.constexpr = tile.dtype
    c = gl.arange(0, 16, gl.SliceLayout(0, layout))[None, :]
    lse, delta = -lses.load(of_query) * inverse, -deltas.load(of_query)
    x = gl.where(c < 4, lse[:, None], delta[:, None])
    high = x.to(dtype)
    rest = x - high.to(gl.float32)
    middle = rest.to(dtype)
    low = (rest - middle.to(gl.float32)).to(dtype)
    ones = gl.full([1, 16], 1.0, gl.float32, layout).to(dtype)
    part = gl.where(c % 4 == 0, high, gl.where(c % 4 == 1, middle, low))
    part = gl.where(c == 3, ones, part)
    zero = gl.full([1, 16], 0.0, gl.float32, layout).to(dtype)
    tile.store(gl.where(c < 7, part, zero))


@gluon.jit
def key_extra(
    term, ROWS: gl.constexpr, FROM: gl.constexpr, layout: gl.constexpr,
    dtype: gl.constexpr, HAS_MASK: gl.constexpr,
):  # fmt: skip
    """Ones in the three columns from `FROM`, and the mask in the next."""
    c = gl.arange(0, 16, gl.SliceLayout(0, layout))[None, :]
    k = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    x = gl.where((c >= FROM) & (c < FROM + 3), 1.0, 0.0).to(dtype)
    x, _ = gl.broadcast(x, k[:, None])
    if HAS_MASK:
        x = gl.where(c == FROM + 3, term[:, None], x)
    return x
