# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""What kernels read of frames and points."""

from evofeed.kernels.runtime.backend import tl, triton


@triton.jit
def load_frame(ROTS, TRANS, n, inside):
    """Nine numbers of a rotation, row by row, and three of an origin, as columns."""
    r, t = ROTS + n * 9, TRANS + n * 3
    return (
        tl.load(r, mask=inside, other=0.0), tl.load(r + 1, mask=inside, other=0.0),
        tl.load(r + 2, mask=inside, other=0.0), tl.load(r + 3, mask=inside, other=0.0),
        tl.load(r + 4, mask=inside, other=0.0), tl.load(r + 5, mask=inside, other=0.0),
        tl.load(r + 6, mask=inside, other=0.0), tl.load(r + 7, mask=inside, other=0.0),
        tl.load(r + 8, mask=inside, other=0.0), tl.load(t, mask=inside, other=0.0),
        tl.load(t + 1, mask=inside, other=0.0), tl.load(t + 2, mask=inside, other=0.0),
    )  # fmt: skip


@triton.jit
def load_point(POINTS, at, inside):
    """Three numbers of a point, as columns."""
    p = POINTS + at * 3
    return (
        tl.load(p, mask=inside, other=0.0), tl.load(p + 1, mask=inside, other=0.0),
        tl.load(p + 2, mask=inside, other=0.0),
    )  # fmt: skip
