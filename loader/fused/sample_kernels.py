"""Launches of a sample's kernels: from its bytes on the device to its features in a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evofeed.kernels.runtime.launching import launch
from evofeed.loader.config import LoaderConfig
from evofeed.loader.draws import Crop
from evofeed.loader.fused import clusters, coordinates, emit, rows, stages
from evofeed.loader.fused.filling import pack_words, sample_words
from evofeed.loader.fused.sample_words import Recycle, Sample
from evofeed.loader.fused.tables import residue_tables
from evofeed.loader.read_chain import Slab
from evofeed.protein.features import SUPERVISED
from evofeed.protein.residues import MASK

_CODES = MASK + 1
_ALIGNED = 4
"""Words of 32 bits: Triton assumes memory aligned to 16 bytes."""


def prepare(
    slab: Slab,
    sizes: tuple[int, int, int, int],
    crop: Crop,
    config: LoaderConfig,
    recycles: Sequence[Recycle],
    device: torch.device,
    **options: Any,
) -> tuple[SampleKernels, np.ndarray]:
    """The kernels of a sample, and the words to store after its bytes.

    `options` are the other arguments of `sample_words`.
    """
    options["recycles"] = len(recycles)
    options["max_rows"] = max(recycle.remaining for recycle in recycles)
    sample = sample_words(slab, sizes, crop, config, **options)
    words = pack_words(sample, crop.templates, recycles)
    return SampleKernels(sample, recycles, config, device), words


class SampleKernels:
    """Scratch memory of one sample; its methods launch the kernels, in this order.

    Launches are queued on the current stream without a synchronization. `data` are
    the sample's bytes on the device and `words` its words, which follow them.
    """

    def __init__(
        self,
        sample: Sample,
        recycles: Sequence[Recycle],
        config: LoaderConfig,
        device: torch.device,
    ) -> None:
        self.sample, self.config, self.device = sample, config, device
        self.recycles = len(recycles)
        self.rows = max(recycle.rows for recycle in recycles)

        self.extra = max(recycle.extra_count for recycle in recycles)
        count, max_rows = len(recycles), sample["max_rows"]
        centres, pitch = sample["out_centres"], sample["pitch"]
        cells = count * centres * sample["out_residues"]
        structures = 1 + min(sample["chosen"], sample["out_templates"])
        coordinates = structures * (sample["out_residues"] + 1)
        self.structures = structures
        # One allocation, split: each costs the host as much as a launch.
        words32 = [
            *(sample["rows"], count * sample["rows"], max(sample["deletions"], 1)),
            *(3 * count * max_rows, 3 * count * max_rows, count * max_rows),
            *(cdiv(count * rows * pitch, 4) for rows in (max_rows, centres, centres)),
            *(coordinates * 111, coordinates * 37),
        ]
        sums = [cells * _CODES, cells, cells, count * centres]
        sizes = [size + -size % _ALIGNED for size in (*words32, *sums)]
        memory = torch.empty(sum(sizes), dtype=torch.int32, device=device)
        pieces = torch.split(memory, sizes)
        memory[-sum(sizes[-len(sums) :]) :].zero_()
        self.stored, self.recycle_row, self.deletion_row = pieces[:3]
        self.order, self.rank, self.cluster = pieces[3:6]
        self.codes, self.masked, self.is_masked = (piece.view(torch.uint8) for piece in pieces[6:9])
        self.xyz, self.atom_mask = (piece.view(torch.float32) for piece in pieces[9:11])
        self.code_counts, self.cluster_deletions = pieces[11:13]
        self.centre_deletions, self.cluster_size = pieces[13:]

    def run(self, words: Tensor, data: Tensor, batch: Mapping[str, Tensor]) -> None:
        """Writes all features of the sample into its slice of the batch."""
        self.unpack(words, data)
        self.gather(words, data)
        self.mask(words, data, batch)
        self.features_of_recycles(words, data, batch)
        self.constant_features(words, data, batch)

    def unpack(self, words: Tensor, data: Tensor) -> None:
        """Unpacks coordinates, inverts the stored row order, and shuffles the rows."""
        sample, structures = self.sample, self.structures
        blocks = cdiv(sample["rows"], 64) + 3 * self.recycles * cdiv(sample["max_rows"], 32)
        launch(
            stages.unpack_and_shuffle,
            (blocks + structures * cdiv(sample["out_residues"] + 1, 16), 1, 1),
            (
                *(words, data, self.stored, self.recycle_row, self.deletion_row),
                *(self.order, self.rank, self.xyz, self.atom_mask),
            ),
            {"INDEXED": 64, "SHUFFLED": 32, "UNPACKED": 16},
        )
        exceptions = max(sample["truth_exceptions"], sample["template_exceptions"])
        if exceptions:
            launch(
                coordinates.add_exceptions,
                (cdiv(exceptions, 256), structures, 1),
                (words, data, self.xyz),
                {"BLOCK": 256},
            )

    def gather(self, words: Tensor, data: Tensor) -> None:
        """Gathers the codes of the rows of each recycle."""
        launch(
            rows.gather_rows,
            (cdiv(self.rows, 8), self.recycles, 1),
            (words, data, self.stored, self.order, self.recycle_row, self.codes),
            {"NUM_SPANS": self.config.num_blocks + 3, "BLOCK": 8, "COLUMNS": 128},
        )

    def mask(self, words: Tensor, data: Tensor, batch: Mapping[str, Tensor]) -> None:
        """Masks the centres (masked-MSA); emits the extra rows' features except deletions."""
        sample = self.sample
        rows = sample["out_centres"] + cdiv(sample["out_extra"], 8)
        launch(
            stages.mask_and_emit_extra,
            (rows, cdiv(max(sample["pitch"], sample["out_residues"]), 128), self.recycles),
            (
                *(words, data, self.codes, self.masked, self.is_masked, self.order),
                *(batch[name] for name in _OF_EXTRA),
            ),
            {"MASKED": 128, "EMITTED": 8},
        )

    def features_of_recycles(
        self, words: Tensor, data: Tensor, batch: Mapping[str, Tensor]
    ) -> None:
        """Clusters the rows and emits the features that depend on clusters and deletions."""
        sample = self.sample
        if self.extra:
            launch(
                clusters.cluster_rows,
                (cdiv(self.extra, 16), self.recycles, 1),
                (words, self.codes, self.masked, self.cluster, self.cluster_size, self.code_counts),
                {"BLOCK": 16, "CENTRES": 64, "COLUMNS": 64},
            )
        if sample["deletions"]:
            launch(
                clusters.add_deletions,
                (cdiv(sample["deletions"], 256), self.recycles, 1),
                (
                    *(words, data, self.deletion_row, self.recycle_row, self.rank, self.cluster),
                    *(self.cluster_deletions, self.centre_deletions),
                    *(batch["extra_has_deletion"], batch["extra_deletion_value"]),
                ),
                {"BLOCK": 256},
            )
        launch(
            emit.emit_msa,
            (sample["out_centres"], cdiv(sample["out_residues"], 128), self.recycles),
            (
                *(words, self.codes, self.masked, self.is_masked, self.cluster_size),
                *(self.code_counts, self.cluster_deletions, self.centre_deletions),
                *(batch[name] for name in _OF_MSA),
            ),
            {"COLUMNS": 128, "TILE": 32, "CHANNELS": 32},
        )

    def constant_features(self, words: Tensor, data: Tensor, batch: Mapping[str, Tensor]) -> None:
        """Emits all features of stage `batch`."""
        sample = self.sample
        # Without ground truth its kernels are not compiled; any tensor serves as the argument.
        unused = batch["seq_mask"]
        launch(
            stages.constant_features,
            (cdiv(sample["out_residues"], 8), 2 + sample["out_templates"], 1),
            (
                *(words, data, *residue_tables(self.device), self.xyz, self.atom_mask),
                *(batch[name] for name in _OF_RESIDUES + _OF_TEMPLATES),
                *(batch.get(name, unused) for name in SUPERVISED),
            ),
            # Frames of nearly collinear atoms amplify rounding: no FMA, as in plain torch.
            {"SUPERVISED": int(self.config.supervised), "BLOCK": 8, "enable_fp_fusion": False},
        )


def cdiv(size: int, block: int) -> int:
    """Number of blocks that cover a size (ceiling division)."""
    return -(-size // block)


_OF_EXTRA = """extra_msa extra_msa_mask extra_msa_row_mask extra_has_deletion
    extra_deletion_value""".split()
_OF_MSA = "msa_feat msa_mask msa_row_mask bert_mask true_msa".split()
_OF_RESIDUES = """aatype residue_index seq_mask target_feat atom14_atom_exists atom37_atom_exists
    residx_atom14_to_atom37 residx_atom37_to_atom14 seq_length resolution is_distillation
    use_clamped_fape""".split()
_OF_TEMPLATES = """template_aatype template_all_atom_positions template_all_atom_mask
    template_sum_probs template_mask template_pseudo_beta template_pseudo_beta_mask
    template_torsion_angles_sin_cos template_alt_torsion_angles_sin_cos
    template_torsion_angles_mask""".split()
"""Feature names in the order of the kernels' arguments."""
