# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Stored coordinates to atom37 positions of the crop, and of the residue before it.

Structure 0 is the true structure, the next are the chosen templates. Scratch memory:
`xyz f32[S, L + 1, 37, 3]` and `atom_mask f32[S, L + 1, 37]`, `L` the residues of the batch;
residue 0 is the one before the crop, zeros if there is none.
"""

import triton
import triton.language as tl

from evofeed.loader.fused.loads import column_start, sample_offsets, word
from evofeed.loader.fused.sample_words import WORDS

_RESIDUES, _CROP_START, _CROP_LENGTH = sample_offsets("residues crop_start crop_length")
_OUT_RESIDUES, _CHOSEN, _CENTER_AT = sample_offsets("out_residues chosen template_center_at")
_TRUTH, _TEMPLATE = sample_offsets("truth_residues template_residues")
_TEMPLATES = tl.constexpr(len(WORDS))
# Offsets of words in either group.
_MASK_AT, _MASK_PACKED, _AT, _FIXED, _ANCHORS, _ATOMS, _EXCEPTIONS = (
    tl.constexpr(n) for n in range(1, 8)
)


@triton.jit
def _group(words, structure):
    """Words of the coordinates of a structure, its first stored residue, whether it exists."""
    if structure == 0:
        group = words + _TRUTH
        first = 0
        exists = word(words, _TRUTH) > 0
    else:
        group = words + _TEMPLATE
        exists = structure - 1 < word(words, _CHOSEN)
        number = tl.load(words + _TEMPLATES + structure - 1, mask=exists, other=0).to(tl.int32)
        first = number * word(words, _RESIDUES)
    return group, first, exists


@triton.jit
def _mask_bits(data, group, residue, live):
    """Bit mask (i64) of the 37 atoms that each residue has."""
    mask_start = data + column_start(group, _MASK_AT)
    if word(group, _MASK_PACKED) != 0:
        low = tl.load(mask_start.to(tl.pointer_type(tl.uint32)) + residue, mask=live, other=0)
        high = tl.load(mask_start + 4 * word(group, 0) + residue, mask=live, other=0)
        bits = low.to(tl.int64) | (high.to(tl.int64) << 32)
    else:
        bits = tl.zeros(residue.shape, tl.int64)
        for atom in range(0, 37):
            present = tl.load(mask_start + residue * 37 + atom, mask=live, other=0) > 0
            bits |= present.to(tl.int64) << atom
    return bits & 0x1FFFFFFFFF


@triton.jit
def _count_bits(bits):
    """Number of set bits of each i64 (population count)."""
    bits = bits - ((bits >> 1) & 0x5555555555555555)
    bits = (bits & 0x3333333333333333) + ((bits >> 2) & 0x3333333333333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F0F0F0F0F
    return ((bits * 0x0101010101010101) >> 56).to(tl.int32)


@triton.jit
def unpack_positions(
    words, data, xyz, atom_mask, block, structure,
    BLOCK: tl.constexpr, ATOMS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """FIXED or plain coordinates to positions; one block of residues of a structure.

    An atom's offset depends on the number of atoms before it in the chain: each
    program counts them, which is cheaper than waiting for another kernel.
    """
    group, first, exists = _group(words, structure)
    length = word(words, _CROP_LENGTH)
    begin = block * BLOCK
    out_residue = begin + tl.arange(0, BLOCK)
    start = word(words, _CROP_START) - 1
    live = exists & (out_residue <= length) & (start + out_residue >= 0)
    residue = first + start + out_residue
    out_residues = word(words, _OUT_RESIDUES) + 1
    atom = tl.arange(0, ATOMS)[None, :]
    bits = _mask_bits(data, group, residue, live)
    present = ((bits[:, None] >> atom.to(tl.int64)) & 1) != 0
    present &= (atom < 37) & live[:, None]
    xyz_start = data + column_start(group, _AT)
    out = (structure * out_residues + out_residue)[:, None] * 37 + atom
    inside = (out_residue < out_residues)[:, None] & (atom < 37)
    tl.store(atom_mask + out, present.to(tl.float32), mask=inside)
    if word(group, _FIXED) != 0:
        atoms_before = 0
        anchors_before = 0
        first_of_block = tl.where(exists, tl.maximum(first, first + start + begin), 0)
        for chunk in range(0, first_of_block, CHUNK):
            earlier = chunk + tl.arange(0, CHUNK)
            atoms = _count_bits(_mask_bits(data, group, earlier, earlier < first_of_block))
            atoms_before += tl.sum(atoms)
            anchors_before += tl.sum((atoms > 0).to(tl.int32))
        atoms = tl.where(live, _count_bits(bits), 0)
        has_atoms = (atoms > 0).to(tl.int32)
        anchor = anchors_before + tl.cumsum(has_atoms, 0) - has_atoms
        before = atoms_before + tl.cumsum(atoms, 0) - atoms
        lower = (tl.full([1, ATOMS], 1, tl.int64) << atom.to(tl.int64)) - 1
        rank = _count_bits(bits[:, None] & lower)
        anchors = word(group, _ANCHORS)
        relatives = word(group, _ATOMS) - anchors
        anchor = tl.maximum(tl.minimum(anchor, anchors - 1), 0)
        relative = (before - anchor)[:, None] + rank - 1
        relative = tl.maximum(tl.minimum(relative, relatives - 1), 0)
        anchor_at = (xyz_start + 16).to(tl.pointer_type(tl.int32))
        relative_at = (xyz_start + 16 + 12 * anchors).to(tl.pointer_type(tl.int16))
        centre = (data + column_start(words, _CENTER_AT)).to(tl.pointer_type(tl.float32))
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
        plain = xyz_start.to(tl.pointer_type(tl.float32))
        for x in tl.static_range(3):
            load_mask = inside & live[:, None]
            cell = residue[:, None] * 37 + atom
            value = tl.load(plain + cell * 3 + x, mask=load_mask, other=0.0)
            tl.store(xyz + out * 3 + x, value, mask=inside)


@triton.jit
def add_exceptions(words, data, xyz, BLOCK: tl.constexpr):
    """Overwrites coordinates that are not multiples of 0.001. Grid: blocks of them, structures."""
    structure = tl.program_id(1)
    group, first, exists = _group(words, structure)
    count = word(group, _EXCEPTIONS)
    anchors = word(group, _ANCHORS)
    atoms = word(group, _ATOMS)
    tail = 16 + 12 * anchors + 6 * (atoms - anchors)
    exceptions = data + column_start(group, _AT) + ((tail + 3) // 4) * 4
    cells = exceptions.to(tl.pointer_type(tl.uint32))
    values = (exceptions + 4 * count).to(tl.pointer_type(tl.float32))
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = exists & (index < count)
    cell = tl.load(cells + index, mask=live, other=0).to(tl.int64)
    value = tl.load(values + index, mask=live, other=0.0)
    out_residue = cell // 111 - first - (word(words, _CROP_START) - 1)
    in_structure = (cell // 111 >= first) & (cell // 111 < first + word(words, _RESIDUES))
    live &= in_structure & (out_residue >= 0) & (out_residue <= word(words, _CROP_LENGTH))
    out = (structure * (word(words, _OUT_RESIDUES) + 1) + out_residue) * 111 + cell % 111
    tl.store(xyz + out, value, mask=live)
