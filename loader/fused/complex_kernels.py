"""The kernels of a complex in their order: a slot's bytes on the device to a sample of a batch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from evofeed.features import GT_FEATURES
from evofeed.kernels.runtime.launching import launch
from evofeed.loader.batch import empty_batch
from evofeed.loader.config import LoaderConfig
from evofeed.loader.fused import complex_clusters, complex_rows, complex_structure
from evofeed.loader.fused.complex_filling import ComplexPlan
from evofeed.loader.fused.sample_kernels import cdiv
from evofeed.loader.fused.tables import residue_tables

_ALIGNED = 4
"""Words of 32 bits: Triton wants memory that begins at 16 bytes."""


class ComplexKernels:
    """Scratch memory of one complex, and its kernels in the order of the methods.

    Everything is queued on the current stream and nothing is waited for.

    Args:
        plan: of the complex.
        config: sizes; whether the true structure is wanted.
        data: the slot's bytes on the device.
        decided: the reader's decisions among them, i32.
        words: the plan's words among them, i64.
    """

    def __init__(
        self, plan: ComplexPlan, config: LoaderConfig, data: Tensor, decided: Tensor, words: Tensor
    ) -> None:
        self.plan, self.config, self.recycles = plan, config, plan.sample.recycles
        self.data, self.decided, self.members = data, decided, words
        self.words, self.whole = words[plan.sample_at :], words[plan.whole_at :]
        whole, recycles = plan.whole, self.recycles
        centres, extra = recycles * whole.out_centres, recycles * max(plan.recycle.extra_count, 1)
        kept, pitch = recycles * plan.recycle.rows, whole.pitch
        # One block of memory, cut: each allocation costs the host as much as a launch.
        words32 = [
            *(plan.stored, plan.stored, plan.deletion_rows),
            *(3 * recycles * whole.count_pitch, 3 * recycles * whole.count_pitch),
            *(3 * plan.atoms, plan.atoms, kept),
            *(cdiv(rows * pitch, 4) for rows in (whole.rows, kept, centres, centres)),
            *(centres * whole.out_extra, centres * whole.out_extra, centres, centres),
            *(recycles * whole.out_extra, recycles * whole.out_extra),
        ]
        sums = [whole.num_res * 22, whole.rows * whole.own_width]
        sizes = [max(size, 1) + -max(size, 1) % _ALIGNED for size in (*words32, *sums)]
        memory = torch.empty(sum(sizes), dtype=torch.int32, device=data.device)
        memory[-sum(sizes[-len(sums) :]) :].zero_()
        pieces = torch.split(memory, sizes)
        self.stored, self.place, self.deletion_row, self.order, self.rank = pieces[:5]
        self.xyz, self.known = (piece.view(torch.float32) for piece in pieces[5:7])
        self.kept_row = pieces[7]
        self.msa, self.codes, self.masked, self.asked = (p.view(torch.uint8) for p in pieces[8:12])
        self.agreement, self.member, self.number = pieces[12:15]
        self.size, self.best = pieces[15].view(torch.float32), pieces[16]
        self.weight = pieces[17].view(torch.float32)
        self.counts, self.deletions = pieces[18:]
        self.extra = extra if plan.recycle.extra_count else 0

    def run(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All features of the sample into its place in the batch; its whole truth, if wanted."""
        self.unpack()
        self.merge()
        self.features_of_recycles(batch)
        self.constant_features(batch)
        return self.truth() if self.config.supervised else {}

    def unpack(self) -> None:
        """Records' rows, deletions and coordinates; random orders of the rows."""
        plan = self.plan
        launch(
            complex_rows.unpack_members,
            (plan.blocks, plan.members, 1),
            (
                *(self.members, self.data, self.stored, self.place, self.deletion_row),
                *(self.order, self.rank, self.xyz, self.known),
            ),
            {"STRIDE": plan.stride},
        )
        if plan.exceptions:
            launch(
                complex_rows.add_member_exceptions,
                (cdiv(plan.exceptions, 256), plan.structures, plan.members - 1),
                (self.members, self.data, self.xyz),
                {"STRIDE": plan.stride},
            )

    def merge(self) -> None:
        """The merged MSA with its deletions and counts, and the rows of each recycle."""
        plan, whole = self.plan, self.plan.whole
        rows, columns = max(whole.rows, 1), whole.pitch
        launch(
            complex_rows.merge_rows,
            (cdiv(rows, 8), cdiv(columns, 128), 1),
            (self.whole, self.data, self.decided, self.stored, self.place, self.msa),
            {"ROWS": 8, "COLUMNS": 128},
        )
        if plan.most_deletions:
            launch(
                complex_rows.place_deletions,
                (cdiv(plan.most_deletions, 256), plan.members - 1, 1),
                (
                    *(self.members, self.whole, self.data),
                    *(self.deletion_row, self.place, self.deletions),
                ),
                {"STRIDE": plan.stride, "BLOCK": 256},
            )
        launch(
            complex_rows.count_codes,
            (cdiv(rows, 64), cdiv(columns, 32), 1),
            (self.whole, self.msa, self.counts),
            {"ROWS": 64, "COLUMNS": 32},
        )
        launch(
            complex_rows.gather_kept,
            (cdiv(plan.recycle.rows, 8), cdiv(columns, 128), self.recycles),
            (self.words, self.whole, self.msa, self.order, self.kept_row, self.codes),
            {"ROWS": 8, "COLUMNS": 128},
        )

    def features_of_recycles(self, batch: Mapping[str, Tensor]) -> None:
        """Masked-MSA, clusters, and what follows from them."""
        plan, whole = self.plan, self.plan.whole
        launch(
            complex_clusters.mask_and_emit_extra,
            (
                whole.out_centres + cdiv(whole.out_extra, 8),
                cdiv(max(whole.pitch, whole.out_residues), 128),
                self.recycles,
            ),
            (
                *(self.words, self.whole, self.decided, self.counts.view(torch.uint8), self.codes),
                *(self.masked, self.asked, self.kept_row, self.deletions),
                *(batch[name] for name in _OF_EXTRA),
            ),
            {"COLUMNS": 128, "ROWS": 8},
        )
        if self.extra:
            launch(
                complex_clusters.agree,
                (cdiv(plan.recycle.extra_count, 16), self.recycles, 1),
                (
                    *(self.words, self.whole, self.codes, self.masked),
                    *(self.agreement, self.best, self.weight),
                ),
                {"BLOCK": 16, "CENTRES": 64},
            )
        launch(
            complex_clusters.list_members,
            (whole.out_centres, self.recycles, 1),
            (
                *(self.words, self.whole, self.agreement, self.best, self.weight),
                *(self.member, self.number, self.size),
            ),
            {"BLOCK": 256},
        )
        launch(
            complex_clusters.emit_clusters,
            (whole.out_centres, cdiv(whole.out_residues, 64), self.recycles),
            (
                *(self.words, self.whole, self.decided, self.codes, self.masked, self.asked),
                *(self.kept_row, self.deletions, self.weight, self.member, self.number, self.size),
                *(batch[name] for name in _OF_MSA),
            ),
            {"COLUMNS": 64},
        )

    def constant_features(self, batch: Mapping[str, Tensor]) -> None:
        """All features of stage `batch`."""
        whole, absent = self.plan.whole, batch["seq_mask"]
        launch(
            complex_structure.constant_features,
            (cdiv(whole.out_residues, 8), 1 + whole.out_templates, 1),
            (
                *(self.words, self.whole, self.data, self.decided, self.counts),
                *(*residue_tables(self.data.device), self.xyz, self.known),
                *(batch.get(name, absent) for name in _CONSTANT),
            ),
            {"SUPERVISED": int(self.config.supervised), "BLOCK": 8},
        )

    def truth(self) -> dict[str, Tensor]:
        """`gt_features` of the sample."""
        length = self.plan.whole.num_res
        one = empty_batch(
            self.config, num_res=length, batch_size=1, recycles=1, device=self.data.device,
            zeroed=False, table=GT_FEATURES,
        )  # fmt: skip
        launch(
            complex_structure.whole_truth,
            (cdiv(length, 8), 1, 1),
            (
                *(self.words, self.whole, self.data, self.decided),
                *(*residue_tables(self.data.device), self.xyz, self.known),
                *one.values(),
            ),
            # Frames of nearly straight lines amplify rounding: not contracted, as in plain torch.
            {"BLOCK": 8, "enable_fp_fusion": False},
        )
        return {name: value[0] for name, value in one.items()}


_OF_EXTRA = "extra_msa extra_deletion_matrix extra_msa_mask".split()
_OF_MSA = "msa msa_feat msa_mask bert_mask true_msa cluster_deletion_mean".split()
_CONSTANT = """aatype residue_index asym_id entity_id sym_id seq_mask target_feat msa_profile
    atom14_atom_exists atom37_atom_exists residx_atom14_to_atom37 residx_atom37_to_atom14
    all_atom_positions all_atom_mask seq_length num_alignments assembly_num_chains resolution
    is_distillation use_clamped_fape template_aatype template_all_atom_positions
    template_all_atom_mask template_mask""".split()
"""Features in the order of the kernels' arguments."""
