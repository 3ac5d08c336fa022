"""Atom coordinates in thousandths of an ångström, without loss.

PDB files have three decimals, so `k = 1000 x` is an integer and
`float32(k) / float32(1000)` is the float that parsing gives (|k| < 2^24; one
correctly rounded division). A residue's first atom is stored in full (i32), the
others relative to it (i16). Template coordinates had a centre subtracted in f32:
the same subtraction is done on decoding. The encoder decodes its payload and
stores every component that differs by a single bit as an exception.
"""

from __future__ import annotations

import numpy as np

from evofeed.base.shapes import Bool, Float, Int, Shaped, UInt8

SCALE = np.float32(1000)
LIMIT = 2**24
"""Integers below this are exact in f32."""
MAX_EXCEPTIONS = 0.05
"""Share of components above which the plain f32 array is stored: it is smaller."""


def pack_mask(mask: UInt8[np.ndarray, "M 37"]) -> bytes:
    """MASK37: bits 0-31 of every residue (u32 each), then bits 32-36 (u8 each)."""
    bits = np.packbits(mask, axis=1, bitorder="little")
    return bits[:, :4].tobytes() + bits[:, 4].tobytes()


def unpack_mask(payload: bytes | memoryview, residues: int) -> UInt8[np.ndarray, "M 37"]:
    """The mask of a MASK37 payload, 0 or 1."""
    low = np.frombuffer(payload, np.uint8, 4 * residues).reshape(residues, 4)
    high = np.frombuffer(payload, np.uint8, residues, offset=4 * residues)
    return np.unpackbits(np.c_[low, high], axis=1, count=37, bitorder="little")


def pack_positions(
    positions: Float[np.ndarray, "M 37 3"],
    mask: UInt8[np.ndarray, "M 37"],
    center: Float[np.ndarray, "M 3"] | None,
) -> bytes | None:
    """FIXED payload, or None if too many components would be exceptions.

    Args:
        positions: f32, ångström, with `center` subtracted in f32 if that is given.
        mask: present atoms; positions of others are 0.
        center: subtracted from each residue's atoms.
    """
    present = mask.astype(bool)
    absolute = positions.astype(np.float64)
    if center is not None:
        absolute = absolute + center[:, None].astype(np.float64)
    fixed = np.rint(absolute[present] * 1000)
    fixed = np.where(np.abs(fixed) < LIMIT, fixed, 0).astype(np.int64)  # NaN and far away: 0
    anchors, relative = _split(fixed, present.sum(-1))
    relative = np.where(np.abs(relative) < 2**15, relative, 0)
    decoded = _dense(anchors.astype(np.int32), relative.astype(np.int16), present, center)
    differing = np.flatnonzero(decoded.view(np.uint32).ravel() != positions.view(np.uint32).ravel())
    if len(differing) > MAX_EXCEPTIONS * max(fixed.size, 1):
        return None
    exceptions = (
        differing.astype("<u4").tobytes() + positions.ravel()[differing].astype("<f4").tobytes()
    )
    return _payload(anchors, relative, len(differing)) + exceptions


def unpack_positions(
    payload: bytes | memoryview,
    mask: UInt8[np.ndarray, "M 37"],
    center: Float[np.ndarray, "M 3"] | None,
) -> Float[np.ndarray, "M 37 3"]:
    """Positions of a FIXED payload, bit for bit: the reference of the decoders on the device.

    Raises:
        ValueError: the payload does not fit the mask.
    """
    sections = fixed_sections(payload)
    positions = _dense(sections["anchor"], sections["relative"], mask.astype(bool), center)
    index = sections["exception_index"]
    if index.max(initial=0) >= max(positions.size, 1):
        raise ValueError("an exception is outside the array")
    positions.reshape(-1)[index] = sections["exception_value"]
    return positions


def fixed_sections(payload: bytes | memoryview) -> dict[str, np.ndarray]:
    """The four arrays of a FIXED payload, with the sizes of its header.

    Raises:
        ValueError: the sizes do not fit the payload's length.
    """
    if len(payload) < 16:
        raise ValueError(f"{len(payload)} bytes are not coordinates")
    anchors, atoms, exceptions, _ = np.frombuffer(payload, "<u4", 4).tolist()
    middle = 16 + 12 * anchors + 6 * (atoms - anchors)
    middle += -middle % 4
    if atoms < anchors or len(payload) != middle + 8 * exceptions:
        raise ValueError(f"{len(payload)} bytes are not {middle + 8 * exceptions}")
    relative = np.frombuffer(payload, "<i2", 3 * (atoms - anchors), 16 + 12 * anchors)
    return {
        "anchor": np.frombuffer(payload, "<i4", 3 * anchors, 16).reshape(-1, 3),
        "relative": relative.reshape(-1, 3),
        "exception_index": np.frombuffer(payload, "<u4", exceptions, middle),
        "exception_value": np.frombuffer(payload, "<f4", exceptions, middle + 4 * exceptions),
    }


def _first_atoms(filled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """True for each atom that is the first of its residue, and the residue of each atom."""
    residue = np.repeat(np.arange(len(filled)), filled)
    return np.diff(residue, prepend=-1) > 0, residue


def _split(fixed: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first atom of each residue with atoms, and the other atoms relative to it."""
    first, residue = _first_atoms(counts[counts > 0])
    return fixed[first], fixed[~first] - fixed[first][residue[~first]]


def _joined(anchors: np.ndarray, relative: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Positions of all atoms, i32: reverses `_split` (raises ValueError: wrong counts)."""
    filled, atoms = counts[counts > 0], len(anchors) + len(relative)
    if len(filled) != len(anchors) or int(filled.sum()) != atoms:
        raise ValueError(f"{len(anchors)} residues and {atoms} atoms do not fit the record")
    first, residue = _first_atoms(filled)
    fixed: np.ndarray = anchors[residue].astype(np.int32)
    fixed[~first] += relative
    return fixed


def _payload(anchors: np.ndarray, relative: np.ndarray, exceptions: int = 0) -> bytes:
    """Sizes, anchors and relative positions, padded to four bytes; exceptions follow."""
    head = np.array([len(anchors), len(anchors) + len(relative), exceptions, 0], "<u4").tobytes()
    body = anchors.astype("<i4").tobytes() + relative.astype("<i2").tobytes()
    return bytes(head + body + bytes(-len(body) % 4))


def _dense(
    anchor: Shaped[np.ndarray, "A 3"],
    relative: Shaped[np.ndarray, "B 3"],
    present: Bool[np.ndarray, "M 37"],
    center: Float[np.ndarray, "M 3"] | None,
) -> Float[np.ndarray, "M 37 3"]:
    values = _joined(anchor, relative, present.sum(-1)).astype(np.float32) / SCALE
    if center is not None:
        values = values - center[np.nonzero(present)[0]]
    positions = np.zeros([*present.shape, 3], np.float32)
    positions[present] = values
    return positions


def pack_flat(positions: Float[np.ndarray, "A 3"], counts: Int[np.ndarray, " R"]) -> bytes | None:
    """FIXED_FLAT payload of a flat array of atoms, or None if it cannot be exact.

    Args:
        positions: f64, ångström.
    """
    fixed = np.rint(positions * 1000)
    with np.errstate(invalid="ignore"):
        if not (np.abs(fixed) < LIMIT).all() or (fixed / 1000 != positions).any():
            return None
    anchors, relative = _split(fixed.astype(np.int64), counts)
    return _payload(anchors, relative) if np.abs(relative).max(initial=0) < 2**15 else None


def unpack_flat(
    payload: bytes | memoryview, counts: Int[np.ndarray, " R"]
) -> Float[np.ndarray, "A 3"]:
    """Positions of a FIXED_FLAT payload, f64.

    Raises:
        ValueError: the payload does not fit the counts.
    """
    sections = fixed_sections(payload)
    fixed = _joined(sections["anchor"], sections["relative"], counts)
    return fixed.astype(np.float64) / 1000
