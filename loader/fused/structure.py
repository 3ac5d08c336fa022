# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Features of residues, of the true structure and of templates, padding included.

Batch tensors are `[B, L, ...]` or `[B, Tm, L, ...]`. The arithmetic is that of
`evofeed.loader.transforms.structure`, operation for operation; `xyz` and `atom_mask`
are described in `coordinates`, residue tables in `tables`.
"""

import triton
import triton.language as tl

from evofeed.loader.fused import tables
from evofeed.loader.fused.loads import column_start, load_int, packed_code, sample_offsets, word
from evofeed.loader.fused.sample_words import WORDS
from evofeed.loader.transforms.structure import FLOATS, INTEGERS
from evofeed.protein.residues import ATOM_ORDER, GAP, RESTYPES, UNKNOWN

_RESIDUES, _CROP_START, _CROP_LENGTH = sample_offsets("residues crop_start crop_length")
_OUT_RESIDUES, _OUT_TEMPLATES = sample_offsets("out_residues out_templates")
_SAMPLE, _AATYPE, _RESIDUE_INDEX = sample_offsets("sample aatype_at residue_index_at")
_CHOSEN, _TEMPLATE_CODES, _TEMPLATE_PITCH, _SUM_PROBS = sample_offsets(
    "chosen template_aatype_at template_aatype_pitch sum_probs_at"
)
_SEQ_LENGTH, _RESOLUTION, _CLAMPED = sample_offsets("seq_length resolution use_clamped_fape")
(_IS_DISTILLATION,) = sample_offsets("is_distillation")
_TEMPLATES = tl.constexpr(len(WORDS))
_TABLE = tl.constexpr(tables.WIDTH)
_TO_ATOM37, _TO_ATOM14, _SWAP, _GROUP_ATOMS, _TORSION_ATOMS = (
    tl.constexpr(tables.column(name)) for name in INTEGERS
)
_MASK14, _MASK37, _AMBIGUOUS, _GROUP_EXISTS, _GROUP_AMBIGUOUS, _TORSION_EXISTS, _MIRROR = (
    tl.constexpr(tables.column(name)) for name in FLOATS
)
_GLYCINE = tl.constexpr(RESTYPES.index("G"))
_CA, _CB = tl.constexpr(ATOM_ORDER["CA"]), tl.constexpr(ATOM_ORDER["CB"])
_UNKNOWN, _GAP = tl.constexpr(UNKNOWN), tl.constexpr(GAP)
_EPS = tl.constexpr(1e-8)


@triton.jit
def _unit(x, y, z):
    length = tl.sqrt_rn(x * x + y * y + z * z + _EPS)
    return tl.div_rn(x, length), tl.div_rn(y, length), tl.div_rn(z, length)


@triton.jit
def _axes(a, b, c, xyz, live):
    """Axes of frames through the atoms of cells a (on -x), b (at the origin) and c (in xy)."""
    ax, ay, az = _point(xyz, a, live)
    bx, by, bz = _point(xyz, b, live)
    cx, cy, cz = _point(xyz, c, live)
    xx, xy, xz = _unit(bx - ax, by - ay, bz - az)
    yx, yy, yz = cx - bx, cy - by, cz - bz
    along = xx * yx + xy * yy + xz * yz
    yx, yy, yz = _unit(yx - xx * along, yy - xy * along, yz - xz * along)
    zx, zy, zz = xy * yz - xz * yy, xz * yx - xx * yz, xx * yy - xy * yx
    return xx, xy, xz, yx, yy, yz, zx, zy, zz


@triton.jit
def _point(xyz, cell, live):
    ptr = xyz + cell * 3
    x = tl.load(ptr, mask=live, other=0.0)
    y = tl.load(ptr + 1, mask=live, other=0.0)
    return x, y, tl.load(ptr + 2, mask=live, other=0.0)


@triton.jit
def _torsions(xyz, atom_mask, integers, floats, aatype, previous_cell, live):
    """Sine, cosine and mask of seven torsions, `[BLOCK, 8]`.

    `previous_cell` is the first cell of the residue before each, whose own come 37 later.
    """
    torsion = tl.arange(0, 8)[None, :]
    live = live[:, None] & (torsion < 7)
    table = integers + aatype[:, None] * _TABLE + _TORSION_ATOMS + torsion * 4
    a = previous_cell[:, None] + tl.load(table, mask=live, other=0)
    b = previous_cell[:, None] + tl.load(table + 1, mask=live, other=0)
    c = previous_cell[:, None] + tl.load(table + 2, mask=live, other=0)
    d = previous_cell[:, None] + tl.load(table + 3, mask=live, other=0)
    _x, _y, _z, yx, yy, yz, zx, zy, zz = _axes(b, c, a, xyz, live)
    cx, cy, cz = _point(xyz, c, live)
    dx, dy, dz = _point(xyz, d, live)
    dx, dy, dz = dx - cx, dy - cy, dz - cz
    sine = zx * dx + zy * dy + zz * dz
    cosine = yx * dx + yy * dy + yz * dz
    length = tl.sqrt_rn(sine * sine + cosine * cosine + _EPS)
    sign = tl.where(torsion == 2, -1.0, 1.0)  # psi's sign
    valid = tl.load(
        floats + aatype[:, None] * _TABLE + _TORSION_EXISTS + torsion, mask=live, other=0.0
    )
    valid *= tl.load(atom_mask + a, mask=live, other=0.0)
    valid *= tl.load(atom_mask + b, mask=live, other=0.0)
    valid *= tl.load(atom_mask + c, mask=live, other=0.0)
    valid *= tl.load(atom_mask + d, mask=live, other=0.0)
    return tl.div_rn(sine, length) * sign, tl.div_rn(cosine, length) * sign, valid


@triton.jit
def copy_rows(source, target, row, inside, live, first, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """Rows of `WIDTH` values that begin at `first`, zeros where not `live`."""
    column = tl.arange(0, TILE)[None, :]
    load_mask = live[:, None] & (column < WIDTH)
    value = tl.load(source + first[:, None] + column, mask=load_mask, other=0)
    value = value.to(target.dtype.element_ty)
    tl.store(target + row[:, None] * WIDTH + column, value, mask=inside[:, None] & (column < WIDTH))


@triton.jit
def _emit_pseudo_beta(xyz, atom_mask, aatype, first_cell, row, inside, live, beta, beta_mask):
    cell = first_cell + tl.where(aatype == _GLYCINE, _CA, _CB)
    x, y, z = _point(xyz, cell, live)
    tl.store(beta + row * 3, x, mask=inside)
    tl.store(beta + row * 3 + 1, y, mask=inside)
    tl.store(beta + row * 3 + 2, z, mask=inside)
    tl.store(beta_mask + row, tl.load(atom_mask + cell, mask=live, other=0.0), mask=inside)


@triton.jit
def emit_atom_masks(
    integers, floats, code, row, inside, live, mask14, mask37, to_atom37, to_atom14
):  # fmt: skip
    """Emits atom14 and atom37 masks of residue codes, and the indices between the two layouts."""
    first = tl.maximum(tl.minimum(code, _UNKNOWN), 0) * _TABLE
    copy_rows(floats, mask14, row, inside, live, first + _MASK14, 14, 16)
    copy_rows(floats, mask37, row, inside, live, first + _MASK37, 37, 64)
    copy_rows(integers, to_atom37, row, inside, live, first + _TO_ATOM37, 14, 16)
    copy_rows(integers, to_atom14, row, inside, live, first + _TO_ATOM14, 37, 64)


@triton.jit
def residue_features(
    words, data, integers, floats,
    aatype, residue_index, seq_mask, target_feat, mask14, mask37, to_atom37, to_atom14,
    seq_length, resolution, is_distillation, use_clamped_fape,
    block, BLOCK: tl.constexpr,
):  # fmt: skip
    """Features of the sequence alone; one block of residues."""
    residue = block * BLOCK + tl.arange(0, BLOCK)
    out_residues = word(words, _OUT_RESIDUES)
    sample = word(words, _SAMPLE)
    inside = residue < out_residues
    live = residue < word(words, _CROP_LENGTH)
    stored_residue = word(words, _CROP_START) + residue
    code = load_int(data, words, _AATYPE, stored_residue, live)
    row = sample.to(tl.int64) * out_residues + residue
    tl.store(aatype + row, tl.where(live, code, 0).to(tl.int64), mask=inside)
    index = load_int(data, words, _RESIDUE_INDEX, stored_residue, live)
    tl.store(residue_index + row, tl.where(live, index, 0).to(tl.int64), mask=inside)
    tl.store(seq_mask + row, live.to(tl.float32), mask=inside)
    channel = tl.arange(0, 32)[None, :]
    one_hot = ((code[:, None] + 1 == channel) & live[:, None]).to(tl.float32)
    store_mask = inside[:, None] & (channel < 22)
    tl.store(target_feat + row[:, None] * 22 + channel, one_hot, mask=store_mask)
    emit_atom_masks(integers, floats, code, row, inside, live, mask14, mask37, to_atom37, to_atom14)
    if block == 0:
        tl.store(seq_length + sample, tl.load(words + _SEQ_LENGTH))
        tl.store(is_distillation + sample, word(words, _IS_DISTILLATION).to(tl.float32))
        value = word(words, _RESOLUTION).to(tl.float32, bitcast=True)
        tl.store(resolution + sample, value)
        value = word(words, _CLAMPED).to(tl.float32, bitcast=True)
        tl.store(use_clamped_fape + sample, value)


@triton.jit
def true_structure(
    words, data, integers, floats, xyz, atom_mask,
    positions, mask, exists14, xyz14, alt_xyz14, alt_exists14, ambiguous14,
    frames, frames_mask, group_exists, group_ambiguous, alt_frames,
    beta, beta_mask, backbone, backbone_mask, chi, chi_mask,
    block, BLOCK: tl.constexpr,
):  # fmt: skip
    """Every ground-truth feature; one block of residues."""
    residue = block * BLOCK + tl.arange(0, BLOCK)
    out_residues = word(words, _OUT_RESIDUES)
    inside = residue < out_residues
    live = residue < word(words, _CROP_LENGTH)
    code = load_int(data, words, _AATYPE, word(words, _CROP_START) + residue, live)
    aatype = tl.maximum(tl.minimum(code, _UNKNOWN), 0)
    row = word(words, _SAMPLE).to(tl.int64) * out_residues + residue
    first = aatype * _TABLE
    first_cell = (residue + 1) * 37
    copy_rows(xyz, positions, row, inside, live, first_cell * 3, 111, 128)
    copy_rows(atom_mask, mask, row, inside, live, first_cell, 37, 64)
    copy_rows(floats, ambiguous14, row, inside, live, first + _AMBIGUOUS, 14, 16)
    copy_rows(floats, group_exists, row, inside, live, first + _GROUP_EXISTS, 8, 8)
    copy_rows(floats, group_ambiguous, row, inside, live, first + _GROUP_AMBIGUOUS, 8, 8)
    _emit_pseudo_beta(xyz, atom_mask, aatype, first_cell, row, inside, live, beta, beta_mask)
    # atom14, and again with ambiguous names exchanged
    atom = tl.arange(0, 16)[None, :]
    load_mask = live[:, None] & (atom < 14)
    store_mask = inside[:, None] & (atom < 14)
    out = row[:, None] * 14 + atom
    for naming in tl.static_range(2):
        if naming == 0:
            slot = atom + tl.zeros([BLOCK, 16], tl.int32)
            to_exists = exists14
            to_xyz = xyz14
        else:
            slot = tl.load(integers + first[:, None] + _SWAP + atom, mask=load_mask, other=0)
            to_exists = alt_exists14
            to_xyz = alt_xyz14
        cell = first_cell[:, None] + tl.load(
            integers + first[:, None] + _TO_ATOM37 + slot, mask=load_mask, other=0
        )
        exists = tl.load(floats + first[:, None] + _MASK14 + slot, mask=load_mask, other=0.0)
        exists *= tl.load(atom_mask + cell, mask=load_mask, other=0.0)
        x, y, z = _point(xyz, cell, load_mask)
        tl.store(to_exists + out, exists, mask=store_mask)
        tl.store(to_xyz + out * 3, exists * x, mask=store_mask)
        tl.store(to_xyz + out * 3 + 1, exists * y, mask=store_mask)
        tl.store(to_xyz + out * 3 + 2, exists * z, mask=store_mask)
    _emit_frames(
        integers, floats, xyz, atom_mask, first, first_cell, row, inside, live,
        frames, frames_mask, alt_frames, backbone, backbone_mask,
    )  # fmt: skip
    sine, cosine, valid = _torsions(xyz, atom_mask, integers, floats, aatype, residue * 37, live)
    torsion = tl.arange(0, 8)[None, :]
    is_chi = inside[:, None] & (torsion >= 3) & (torsion < 7)
    to = row[:, None] * 4 + torsion - 3
    tl.store(chi + to * 2, tl.where(live[:, None], sine, 0.0), mask=is_chi)
    tl.store(chi + to * 2 + 1, tl.where(live[:, None], cosine, 0.0), mask=is_chi)
    tl.store(chi_mask + to, tl.where(live[:, None], valid, 0.0), mask=is_chi)


@triton.jit
def _emit_frames(
    integers, floats, xyz, atom_mask, first, first_cell, row, inside, live,
    frames, frames_mask, alt_frames, backbone, backbone_mask,
):  # fmt: skip
    group = tl.arange(0, 8)[None, :]
    load_mask = live[:, None] & (group < 8)
    store_mask = inside[:, None] & (group < 8)
    table = integers + first[:, None] + _GROUP_ATOMS + group * 3
    a = first_cell[:, None] + tl.load(table, mask=load_mask, other=0)
    b = first_cell[:, None] + tl.load(table + 1, mask=load_mask, other=0)
    c = first_cell[:, None] + tl.load(table + 2, mask=load_mask, other=0)
    xx, xy, xz, yx, yy, yz, zx, zy, zz = _axes(a, b, c, xyz, load_mask)
    ox, oy, oz = _point(xyz, b, load_mask)
    sign = tl.where(group == 0, -1.0, 1.0)  # the backbone's frame looks the other way
    xx, xy, xz = xx * sign, xy * sign, xz * sign
    zx, zy, zz = zx * sign, zy * sign, zz * sign
    valid = tl.load(atom_mask + a, mask=load_mask, other=0.0)
    valid = tl.minimum(valid, tl.load(atom_mask + b, mask=load_mask, other=0.0))
    valid = tl.minimum(valid, tl.load(atom_mask + c, mask=load_mask, other=0.0))
    groups = floats + first[:, None] + group
    valid *= tl.load(groups + _GROUP_EXISTS, mask=load_mask, other=0.0)
    out = row[:, None] * 8 + group
    tl.store(frames_mask + out, valid, mask=store_mask)
    backbone_row = row[:, None] + group * 0
    is_backbone = store_mask & (group == 0)
    tl.store(backbone_mask + backbone_row, valid, mask=is_backbone)
    ambiguous = tl.load(groups + _GROUP_AMBIGUOUS, mask=load_mask, other=0.0)
    turn = 1.0 - 2.0 * ambiguous  # half a turn about x exchanges the ambiguous atoms
    for number in tl.static_range(4):  # rows of the 4x4 transforms
        if number == 0:
            x, y, z, origin = xx, yx, zx, ox
        elif number == 1:
            x, y, z, origin = xy, yy, zy, oy
        elif number == 2:
            x, y, z, origin = xz, yz, zz, oz
        else:
            x, y, z, origin = ox * 0.0, ox * 0.0, ox * 0.0, ox * 0.0 + 1.0
        x, y = tl.where(load_mask, x, 0.0), tl.where(load_mask, y, 0.0)
        z, origin = tl.where(load_mask, z, 0.0), tl.where(load_mask, origin, 0.0)
        to = out * 16 + number * 4
        tl.store(frames + to, x, mask=store_mask)
        tl.store(frames + to + 1, y, mask=store_mask)
        tl.store(frames + to + 2, z, mask=store_mask)
        tl.store(frames + to + 3, origin, mask=store_mask)
        tl.store(alt_frames + to, x, mask=store_mask)
        tl.store(alt_frames + to + 1, y * turn, mask=store_mask)
        tl.store(alt_frames + to + 2, z * turn, mask=store_mask)
        tl.store(alt_frames + to + 3, origin, mask=store_mask)
        to = backbone_row * 16 + number * 4
        tl.store(backbone + to, x, mask=is_backbone)
        tl.store(backbone + to + 1, y, mask=is_backbone)
        tl.store(backbone + to + 2, z, mask=is_backbone)
        tl.store(backbone + to + 3, origin, mask=is_backbone)


@triton.jit
def emit_torsions(
    xyz, atom_mask, integers, floats, aatype, previous_cell, row, inside, live,
    sin_cos, alt_sin_cos, mask,
):  # fmt: skip
    """Emits all seven torsions, their alternatives (turned by pi), and the mask."""
    sine, cosine, valid = _torsions(xyz, atom_mask, integers, floats, aatype, previous_cell, live)
    torsion = tl.arange(0, 8)[None, :]
    store_mask = inside[:, None] & (torsion < 7)
    load_mask = live[:, None] & (torsion < 7)
    mirrors = floats + aatype[:, None] * _TABLE + _MIRROR
    mirror = tl.load(mirrors + torsion, mask=load_mask, other=0.0)
    sine, cosine = tl.where(load_mask, sine, 0.0), tl.where(load_mask, cosine, 0.0)
    out = row[:, None] * 7 + torsion
    tl.store(sin_cos + out * 2, sine, mask=store_mask)
    tl.store(sin_cos + out * 2 + 1, cosine, mask=store_mask)
    tl.store(alt_sin_cos + out * 2, sine * mirror, mask=store_mask)
    tl.store(alt_sin_cos + out * 2 + 1, cosine * mirror, mask=store_mask)
    tl.store(mask + out, tl.where(load_mask, valid, 0.0), mask=store_mask)


@triton.jit
def template_features(
    words, data, integers, floats, xyz, atom_mask,
    template_aatype, positions, mask, sum_probs, template_mask, beta, beta_mask,
    torsion_sin_cos, alt_torsion_sin_cos, torsion_mask,
    block, slot, BLOCK: tl.constexpr,
):  # fmt: skip
    """Every template feature; one block of residues of a template of the batch."""
    residue = block * BLOCK + tl.arange(0, BLOCK)
    out_residues = word(words, _OUT_RESIDUES)
    exists = slot < word(words, _CHOSEN)
    inside = residue < out_residues
    live = exists & (residue < word(words, _CROP_LENGTH))
    number = tl.load(words + _TEMPLATES + slot, mask=exists, other=0).to(tl.int32)
    pitch = word(words, _TEMPLATE_PITCH)
    line = tl.where(pitch > 0, pitch, word(words, _RESIDUES)) * number
    codes = data + column_start(words, _TEMPLATE_CODES) + line
    code = packed_code(codes, word(words, _CROP_START) + residue, pitch, live)
    code = tl.where(live, tl.minimum(code, _GAP), 0)
    out_slot = word(words, _SAMPLE).to(tl.int64) * word(words, _OUT_TEMPLATES) + slot
    row = out_slot * out_residues + residue
    tl.store(template_aatype + row, code.to(tl.int64), mask=inside)
    base = (slot + 1) * (out_residues + 1) * 37
    first_cell = base + (residue + 1) * 37
    copy_rows(xyz, positions, row, inside, live, first_cell * 3, 111, 128)
    copy_rows(atom_mask, mask, row, inside, live, first_cell, 37, 64)
    _emit_pseudo_beta(xyz, atom_mask, code, first_cell, row, inside, live, beta, beta_mask)
    aatype = tl.minimum(code, _UNKNOWN)  # templates have gaps
    previous_cell = base + residue * 37
    emit_torsions(
        xyz, atom_mask, integers, floats, aatype, previous_cell, row, inside, live,
        torsion_sin_cos, alt_torsion_sin_cos, torsion_mask,
    )  # fmt: skip
    if block == 0:
        sum_prob = (data + column_start(words, _SUM_PROBS)).to(tl.pointer_type(tl.float32)) + number
        tl.store(sum_probs + out_slot, tl.load(sum_prob, mask=exists, other=0.0))
        tl.store(template_mask + out_slot, exists.to(tl.float32))
