"""Packed columns, already on the device, to the tensors of a `ChainTensors`.

The shard's codecs (`store/FORMAT.md`) in torch, bit for bit what the store's
numpy decoders give. Every size is known on the host, so nothing here waits for
the device; every index is clamped or was checked, so nothing can kill it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from evofeed.base.shapes import Bool, Float, Integer, UInt8
from evofeed.loader.features import ChainTensors
from evofeed.loader.read_chain import Part, Slab
from evofeed.protein.features import RECORD
from evofeed.protein.residues import GAP
from evofeed.store.inner import Codec, unpack_rows_compiled

_DTYPES = {
    feature.name: getattr(torch, feature.dtype) for feature in RECORD if feature.dtype != "str"
}


def unpack_codes(packed: UInt8[Tensor, "R W"], num_res: int) -> UInt8[Tensor, "R {num_res}"]:
    """MSA5 rows to codes, compiled on a CPU: a hundredth of the time."""
    if packed.device.type == "cpu":
        return torch.from_numpy(unpack_rows_compiled(packed.contiguous().numpy(), num_res))
    return codes_in_torch(packed, num_res)


def codes_in_torch(packed: UInt8[Tensor, "R W"], num_res: int) -> UInt8[Tensor, "R {num_res}"]:
    """MSA5 rows to codes: code `j` is bits `5j .. 5j + 4` of its row."""
    bit = torch.arange(num_res, device=packed.device) * 5
    byte = bit >> 3
    after = (byte + 1).clamp(max=packed.shape[1] - 1)  # only looked at where it is there
    low = packed[:, byte].to(torch.int16)
    high = packed[:, after].to(torch.int16) << 8
    return (((low | high) >> (bit & 7).to(torch.int16)) & 31).to(torch.uint8)


def unpack_mask(packed: UInt8[Tensor, " B"]) -> Bool[Tensor, "M 37"]:
    """MASK37 to a mask: 32 bits of every residue, then five more of each."""
    residues = packed.shape[0] // 5
    low = packed[: 4 * residues].view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    bits = low | (packed[4 * residues :].to(torch.int64) << 32)
    atom = torch.arange(37, device=packed.device)
    return ((bits[:, None] >> atom) & 1).to(torch.bool)


def unpack_positions(
    packed: UInt8[Tensor, " B"],
    counts: tuple[int, ...],
    present: Bool[Tensor, "M 37"],
    center: Float[Tensor, "M 3"] | None,
) -> Float[Tensor, "M 37 3"]:
    """FIXED to coordinates: a whole first atom a residue, the others relative to it.

    Args:
        packed: the payload.
        counts: residues with atoms, atoms, exceptions.
        present: which atoms are there.
        center: subtracted from each residue's atoms, if given.
    """
    anchors, atoms, exceptions = counts
    middle = 16 + 12 * anchors
    tail = middle + 6 * (atoms - anchors)
    tail += -tail % 4
    positions = torch.zeros(*present.shape, 3, device=packed.device)
    if anchors:
        residue = present.any(-1).cumsum(0) - 1
        rank = present.flatten().cumsum(0).view(present.shape) - 1
        first = present & (present.cumsum(-1) == 1)
        fixed = packed[16:middle].view(torch.int32).view(-1, 3)
        fixed = fixed[residue.clamp(0, anchors - 1)][:, None].expand(*present.shape, 3)
        if atoms > anchors:
            relative = packed[middle : middle + 6 * (atoms - anchors)].view(torch.int16).view(-1, 3)
            index = (rank - residue[:, None] - 1).clamp(0, atoms - anchors - 1)
            fixed = fixed + relative[index] * (~first)[..., None]
        # Divided by a tensor: by a number, a GPU would multiply with its reciprocal.
        values = fixed.to(torch.float32) / torch.full((), 1000.0, device=packed.device)
        if center is not None:
            values = values - center[:, None]
        positions = torch.where(present[..., None], values, positions)
    if exceptions:
        where = packed[tail : tail + 4 * exceptions].view(torch.int32).to(torch.int64)
        value = packed[tail + 4 * exceptions :].view(torch.float32)
        positions.view(-1).scatter_(0, where & 0xFFFFFFFF, value)
    return positions


@dataclass(frozen=True, slots=True)
class Unpacker:
    """The columns of one slot on one device."""

    parts: Mapping[str, Part]
    data: Tensor
    start: int
    sizes: Mapping[str, int]

    def payload(self, name: str) -> Tensor:
        """A column's bytes."""
        at = self.parts[name].offset - self.start
        return self.data[at : at + self.parts[name].nbytes]

    def integers(self, name: str, count: int) -> Integer[Tensor, " count"]:
        """RAW, UINT8, UINT16 or RANGE to integers of some dtype that holds them."""
        payload, codec = self.payload(name), self.parts[name].codec
        if codec == Codec.RANGE:
            return payload.view(torch.int32) + torch.arange(count, device=payload.device)
        if codec == Codec.UINT8:
            return payload
        if codec == Codec.UINT16:  # torch knows no arithmetic on uint16
            return payload.view(torch.int16).to(torch.int32) & 0xFFFF
        return payload.view(_DTYPES.get(name, torch.int32))

    def order(self) -> Integer[Tensor, " N"]:
        """Original row of each stored row."""
        return self.integers("msa_order", self.sizes["N"]).to(torch.int64)

    def msa(self) -> UInt8[Tensor, "N L"]:
        """The alignment in the record's order."""
        rows, length = self.sizes["N"], self.sizes["L"]
        stored = self.payload("msa").view(rows, -1)
        order = self.order()
        steps = torch.arange(rows, device=order.device)
        stored = stored[torch.zeros_like(order).scatter_(0, order, steps)]
        if self.parts["msa"].codec == Codec.MSA5:
            stored = unpack_codes(stored, length)
        return stored.clamp(max=GAP)

    def deletions(self) -> Integer[Tensor, "N L"]:
        """Deletions left of each cell, dense `i32`."""
        rows, length, count = self.sizes["N"], self.sizes["L"], self.sizes["K"]
        dense = torch.zeros(rows * length, dtype=torch.int32, device=self.data.device)
        if count:
            column = self.integers("deletion_column", count).to(torch.int64)
            value = self.integers("deletion_count", count).to(torch.int32)
            dense.scatter_(0, self._deletion_rows(count) * length + column, value)
        return dense.view(rows, length)

    def _deletion_rows(self, count: int) -> Tensor:
        payload, codec = self.payload("deletion_row"), self.parts["deletion_row"].codec
        if codec == Codec.ROW_COUNTS8:
            per_row = payload.to(torch.int64)
        elif codec == Codec.ROW_COUNTS16:
            per_row = payload.view(torch.int16).to(torch.int64) & 0xFFFF
        elif codec == Codec.ROW_COUNTS32:
            per_row = payload.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
        else:
            return self.integers("deletion_row", count).to(torch.int64)
        return torch.repeat_interleave(self.order(), per_row, output_size=count)

    def mask(self, name: str) -> Bool[Tensor, "M 37"]:
        """Which atoms are there."""
        payload = self.payload(name)
        if self.parts[name].codec == Codec.MASK37:
            return unpack_mask(payload)
        return payload.view(-1, 37) > 0

    def positions(
        self, name: str, present: Tensor, center: Tensor | None
    ) -> Float[Tensor, "M 37 3"]:
        """Coordinates, ångström."""
        part, payload = self.parts[name], self.payload(name)
        if part.codec == Codec.FIXED:
            return unpack_positions(payload, part.counts, present, center)
        return payload.view(torch.float32).view(-1, 37, 3)

    def templates(self, chosen: tuple[int, ...]) -> dict[str, Tensor]:
        """The chosen templates, by field of `ChainTensors`."""
        length, count = self.sizes["L"], self.sizes["T"]
        if not chosen:
            empty = torch.zeros(0, length, 37, 3, device=self.data.device)
            return {
                "template_aatype": empty[..., 0, 0].to(torch.uint8),
                "template_positions": empty,
                "template_mask": empty[..., 0],
                "template_sum_probs": empty[:, 0, 0, 0],
            }
        center = self.payload("template_center").view(torch.float32).view(count, 3)
        present = self.mask("template_all_atom_mask")
        positions = self.positions(
            "template_all_atom_positions", present, center.repeat_interleave(length, 0)
        )
        codes = self.payload("template_aatype").view(count, -1)
        if self.parts["template_aatype"].codec == Codec.MSA5:
            codes = unpack_codes(codes, length)
        whole = {
            "template_aatype": codes.clamp(max=GAP),
            "template_positions": positions.view(count, length, 37, 3),
            "template_mask": present.view(count, length, 37).to(torch.float32),
            "template_sum_probs": self.payload("template_sum_probs").view(torch.float32),
        }
        # Stacked views, not an index tensor: that would have to cross to the device.
        return {name: torch.stack([value[i] for i in chosen]) for name, value in whole.items()}


def unpack_chain(
    slab: Slab,
    data: Tensor,
    sizes: tuple[int, int, int, int],
    templates: tuple[int, ...],
    *,
    resolution: float,
    is_distillation: bool,
) -> ChainTensors:
    """The chain of a slot, with only the chosen templates.

    `data` is the copied range; offsets are from the start of the slot.
    """
    named = dict(zip("LNKT", sizes, strict=True))
    parts = {part.name: part for part in slab.parts}
    columns = Unpacker(parts, data, slab.start, named)
    length = named["L"]
    positions = mask = None
    if "all_atom_mask" in parts:
        present = columns.mask("all_atom_mask")
        positions = columns.positions("all_atom_positions", present, None)
        mask = present.to(torch.float32)
    return ChainTensors(
        aatype=columns.integers("aatype", length),
        residue_index=columns.integers("residue_index", length),
        msa=columns.msa(),
        deletions=columns.deletions(),
        profile_counts=columns.integers("hhblits_profile_counts", 22 * length).view(length, 22),
        **columns.templates(templates),
        positions=positions,
        mask=mask,
        resolution=resolution,
        is_distillation=is_distillation,
    )
