"""The kernels in their order: a slot's bytes on the device to a sample of a batch."""

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
"""Words of 32 bits: Triton wants memory that begins at 16 bytes."""


def prepare(
    slab: Slab,
    sizes: tuple[int, int, int, int],
    crop: Crop,
    config: LoaderConfig,
    each: Sequence[Recycle],
    device: torch.device,
    **about: Any,
) -> tuple[SampleKernels, np.ndarray]:
    """What to launch for a sample, and the words to put behind its bytes.

    `each` are the sizes and keys of its recycles, `about` what else `sample_words` takes.
    """
    most = max(recycle.left for recycle in each)
    sample = sample_words(slab, sizes, crop, config, recycles=len(each), max_rows=most, **about)
    words = pack_words(sample, crop.templates, each)
    return SampleKernels(sample, each, config, device), words


class SampleKernels:
    """Scratch memory of one sample, and its kernels in the order of the methods.

    Everything is queued on the current stream and nothing is waited for. `data` are
    the sample's bytes on the device and `words` its words, behind them.
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
        self.centres = max(recycle.centres for recycle in recycles)
        self.extra = max(recycle.extra_count for recycle in recycles)
        count, most = len(recycles), sample["max_rows"]
        centres, pitch = sample["out_centres"], sample["pitch"]
        cells = count * centres * sample["out_residues"]
        structures = 1 + min(sample["chosen"], sample["out_templates"])
        coordinates = structures * (sample["out_residues"] + 1)
        self.structures = structures
        # One block of memory, cut: each allocation costs the host as much as a launch.
        words32 = [
            *(sample["rows"], count * sample["rows"], max(sample["deletions"], 1)),
            *(3 * count * most, 3 * count * most, count * most),
            *(cdiv(count * rows * pitch, 4) for rows in (most, centres, centres)),
            *(coordinates * 111, coordinates * 37),
        ]
        sums = [cells * _CODES, cells, cells, count * centres]
        sizes = [size + -size % _ALIGNED for size in (*words32, *sums)]
        memory = torch.empty(sum(sizes), dtype=torch.int32, device=device)
        pieces = torch.split(memory, sizes)
        memory[-sum(sizes[-len(sums) :]) :].zero_()
        self.stored, self.place, self.deletion_row, self.order, self.rank, self.cluster = pieces[:6]
        self.codes, self.masked, self.masked_at = (piece.view(torch.uint8) for piece in pieces[6:9])
        self.xyz, self.known = (piece.view(torch.float32) for piece in pieces[9:11])
        self.counts, self.deleted, self.own, self.size = pieces[11:]

    def run(self, words: Tensor, data: Tensor, batch: Mapping[str, Tensor]) -> None:
        """All features of the sample into its place in the batch."""
        self.unpack(words, data)
        self.gather(words, data)
        self.mask(words, data, batch)
        self.features_of_recycles(words, data, batch)
        self.constant_features(words, data, batch)

    def unpack(self, words: Tensor, data: Tensor) -> None:
        """Coordinates; where each row is in the store; random orders of the rows."""
        sample, structures = self.sample, self.structures
        blocks = cdiv(sample["rows"], 64) + 3 * self.recycles * cdiv(sample["max_rows"], 32)
        launch(
            stages.unpack_and_shuffle,
            (blocks + structures * cdiv(sample["out_residues"] + 1, 16), 1, 1),
            (
                *(words, data, self.stored, self.place, self.deletion_row),
                *(self.order, self.rank, self.xyz, self.known),
            ),
            {"PLACED": 64, "SHUFFLED": 32, "UNPACKED": 16},
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
        """Codes of the kept rows."""
        launch(
            rows.gather_rows,
            (cdiv(self.rows, 8), self.recycles, 1),
            (words, data, self.stored, self.order, self.place, self.codes),
            {"NUM_SPANS": self.config.num_blocks + 3, "BLOCK": 8, "COLUMNS": 128},
        )

    def mask(self, words: Tensor, data: Tensor, batch: Mapping[str, Tensor]) -> None:
        """Masked-MSA of the centres; the extra rows' features but for their deletions."""
        sample = self.sample
        rows = sample["out_centres"] + cdiv(sample["out_extra"], 8)
        launch(
            stages.mask_and_emit_extra,
            (rows, cdiv(max(sample["pitch"], sample["out_residues"]), 128), self.recycles),
            (
                *(words, data, self.codes, self.masked, self.masked_at, self.order),
                *(batch[name] for name in _OF_EXTRA),
            ),
            {"MASKED": 128, "EMITTED": 8},
        )

    def features_of_recycles(
        self, words: Tensor, data: Tensor, batch: Mapping[str, Tensor]
    ) -> None:
        """Clusters, and what follows from them."""
        sample = self.sample
        if self.extra:
            launch(
                clusters.cluster_rows,
                (cdiv(self.extra, 16), self.recycles, 1),
                (words, self.codes, self.masked, self.cluster, self.size, self.counts),
                {"BLOCK": 16, "CENTRES": 64, "COLUMNS": 64},
            )
        if sample["deletions"]:
            launch(
                clusters.add_deletions,
                (cdiv(sample["deletions"], 256), self.recycles, 1),
                (
                    *(words, data, self.deletion_row, self.place, self.rank, self.cluster),
                    *(self.deleted, self.own),
                    *(batch["extra_has_deletion"], batch["extra_deletion_value"]),
                ),
                {"BLOCK": 256},
            )
        launch(
            emit.emit_msa,
            (sample["out_centres"], cdiv(sample["out_residues"], 128), self.recycles),
            (
                *(words, self.codes, self.masked, self.masked_at),
                *(self.size, self.counts, self.deleted, self.own),
                *(batch[name] for name in _OF_MSA),
            ),
            {"COLUMNS": 128, "TILE": 32, "CHANNELS": 32},
        )

    def constant_features(self, words: Tensor, data: Tensor, batch: Mapping[str, Tensor]) -> None:
        """All features of stage `batch`."""
        sample = self.sample
        # Without ground truth its kernels are not compiled, and anything stands for its tensors.
        absent = batch["seq_mask"]
        launch(
            stages.constant_features,
            (cdiv(sample["out_residues"], 8), 2 + sample["out_templates"], 1),
            (
                *(words, data, *residue_tables(self.device), self.xyz, self.known),
                *(batch[name] for name in _OF_RESIDUES + _OF_TEMPLATES),
                *(batch.get(name, absent) for name in SUPERVISED),
            ),
            # Frames of nearly straight lines amplify rounding: not contracted, as in plain torch.
            {"SUPERVISED": int(self.config.supervised), "BLOCK": 8, "enable_fp_fusion": False},
        )


def cdiv(size: int, block: int) -> int:
    """Blocks that cover a size."""
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
"""Features in the order of the kernels' arguments."""
