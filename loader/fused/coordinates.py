# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Stored coordinates to atom37 positions of the crop, and of the residue before it.

Structure 0 is the chain's own, the next are its chosen templates. Scratch memory:
`xyz f32[S, L + 1, 37, 3]` and `known f32[S, L + 1, 37]`, `L` the residues of the batch;
place 0 is the residue before the crop, zeros if there is none.
"""

import triton
import triton.language as tl

from evofeed.loader.fused.loads import begin_of, of_sample, word
from evofeed.loader.fused.sample_words import WORDS

_RESIDUES, _CROP_START, _CROP_LENGTH = of_sample("residues crop_start crop_length")
_OUT_RESIDUES, _CHOSEN, _CENTER_AT = of_sample("out_residues chosen template_center_at")
_TRUTH, _TEMPLATE = of_sample("truth_residues template_residues")
_TEMPLATES = tl.constexpr(len(WORDS))
# Words of either group, from its first.
_MASK_AT, _MASK_PACKED, _AT, _FIXED, _ANCHORS, _ATOMS, _EXCEPTIONS = (
    tl.constexpr(n) for n in range(1, 8)
)


@triton.jit
def _group(words, structure):
    """Words of the coordinates of a structure, its first stored residue, if it is there."""
    if structure == 0:
        group = words + _TRUTH
        first = 0
        is_there = word(words, _TRUTH) > 0
    else:
        group = words + _TEMPLATE
        is_there = structure - 1 < word(words, _CHOSEN)
        number = tl.load(words + _TEMPLATES + structure - 1, mask=is_there, other=0).to(tl.int32)
        first = number * word(words, _RESIDUES)
    return group, first, is_there


@triton.jit
def _mask_bits(data, group, residue, live):
    """Which of 37 atoms each residue has, as bits of an i64."""
    at = data + begin_of(group, _MASK_AT)
    if word(group, _MASK_PACKED) != 0:
        low = tl.load(at.to(tl.pointer_type(tl.uint32)) + residue, mask=live, other=0)
        high = tl.load(at + 4 * word(group, 0) + residue, mask=live, other=0)
        found = low.to(tl.int64) | (high.to(tl.int64) << 32)
    else:
        found = tl.zeros(residue.shape, tl.int64)
        for atom in range(0, 37):
            one = tl.load(at + residue * 37 + atom, mask=live, other=0) > 0
            found |= one.to(tl.int64) << atom
    return found & 0x1FFFFFFFFF


@triton.jit
def _count(found):
    """Bits set in each of 64."""
    found = found - ((found >> 1) & 0x5555555555555555)
    found = (found & 0x3333333333333333) + ((found >> 2) & 0x3333333333333333)
    found = (found + (found >> 4)) & 0x0F0F0F0F0F0F0F0F
    return ((found * 0x0101010101010101) >> 56).to(tl.int32)


@triton.jit
def unpack_positions(
    words, data, xyz, known, block, structure,
    BLOCK: tl.constexpr, ATOMS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """FIXED or plain coordinates to positions; one block of residues of a structure.

    An atom's place depends on how many are before it in the whole chain: each
    program counts them, which is cheaper than waiting for another kernel.
    """
    group, first, is_there = _group(words, structure)
    length = word(words, _CROP_LENGTH)
    begin = block * BLOCK
    place = begin + tl.arange(0, BLOCK)
    start = word(words, _CROP_START) - 1
    live = is_there & (place <= length) & (start + place >= 0)
    residue = first + start + place
    out_residues = word(words, _OUT_RESIDUES) + 1
    atom = tl.arange(0, ATOMS)[None, :]
    found = _mask_bits(data, group, residue, live)
    present = ((found[:, None] >> atom.to(tl.int64)) & 1) != 0
    present &= (atom < 37) & live[:, None]
    at = data + begin_of(group, _AT)
    out = (structure * out_residues + place)[:, None] * 37 + atom
    inside = (place < out_residues)[:, None] & (atom < 37)
    tl.store(known + out, present.to(tl.float32), mask=inside)
    if word(group, _FIXED) != 0:
        atoms_before = 0
        anchors_before = 0
        first_here = tl.where(is_there, tl.maximum(first, first + start + begin), 0)
        for chunk in range(0, first_here, CHUNK):
            other = chunk + tl.arange(0, CHUNK)
            atoms = _count(_mask_bits(data, group, other, other < first_here))
            atoms_before += tl.sum(atoms)
            anchors_before += tl.sum((atoms > 0).to(tl.int32))
        atoms = tl.where(live, _count(found), 0)
        has_atoms = (atoms > 0).to(tl.int32)
        anchor = anchors_before + tl.cumsum(has_atoms, 0) - has_atoms
        before = atoms_before + tl.cumsum(atoms, 0) - atoms
        lower = (tl.full([1, ATOMS], 1, tl.int64) << atom.to(tl.int64)) - 1
        rank = _count(found[:, None] & lower)
        anchors = word(group, _ANCHORS)
        relatives = word(group, _ATOMS) - anchors
        anchor = tl.maximum(tl.minimum(anchor, anchors - 1), 0)
        relative = (before - anchor)[:, None] + rank - 1
        relative = tl.maximum(tl.minimum(relative, relatives - 1), 0)
        anchor_at = (at + 16).to(tl.pointer_type(tl.int32))
        relative_at = (at + 16 + 12 * anchors).to(tl.pointer_type(tl.int16))
        centre = (data + begin_of(words, _CENTER_AT)).to(tl.pointer_type(tl.float32))
        number = tl.where(structure > 0, first // word(words, _RESIDUES), 0)
        for x in tl.static_range(3):
            base = tl.load(anchor_at + anchor * 3 + x, mask=live & (atoms > 0), other=0)
            is_relative = present & (rank > 0) & (relatives > 0)
            offset = tl.load(relative_at + relative * 3 + x, mask=is_relative, other=0)
            thousandths = (base[:, None] + offset.to(tl.int32)).to(tl.float32)
            thousand = tl.full([BLOCK, ATOMS], 1000.0, tl.float32)
            angstrom = tl.div_rn(thousandths, thousand)
            angstrom -= tl.load(centre + number * 3 + x, mask=structure > 0, other=0.0)
            tl.store(xyz + out * 3 + x, tl.where(present, angstrom, 0.0), mask=inside)
    else:
        plain = at.to(tl.pointer_type(tl.float32))
        for x in tl.static_range(3):
            there = inside & live[:, None]
            value = tl.load(plain + (residue[:, None] * 37 + atom) * 3 + x, mask=there, other=0.0)
            tl.store(xyz + out * 3 + x, value, mask=inside)


@triton.jit
def add_exceptions(words, data, xyz, BLOCK: tl.constexpr):
    """Coordinates that are no thousandths, over the others. Grid: blocks of them, structures."""
    structure = tl.program_id(1)
    group, first, is_there = _group(words, structure)
    count = word(group, _EXCEPTIONS)
    anchors = word(group, _ANCHORS)
    atoms = word(group, _ATOMS)
    tail = 16 + 12 * anchors + 6 * (atoms - anchors)
    at = data + begin_of(group, _AT) + ((tail + 3) // 4) * 4
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = is_there & (index < count)
    cell = tl.load(at.to(tl.pointer_type(tl.uint32)) + index, mask=live, other=0).to(tl.int64)
    value = tl.load((at + 4 * count).to(tl.pointer_type(tl.float32)) + index, mask=live, other=0.0)
    place = cell // 111 - first - (word(words, _CROP_START) - 1)
    own = (cell // 111 >= first) & (cell // 111 < first + word(words, _RESIDUES))
    live &= own & (place >= 0) & (place <= word(words, _CROP_LENGTH))
    out = (structure * (word(words, _OUT_RESIDUES) + 1) + place) * 111 + cell % 111
    tl.store(xyz + out, value, mask=live)
