"""From a chain and a checkpoint to a structure: the shortest way to look at what was learnt."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evofeed.base.errors import InputError
from evofeed.loader import LoaderConfig, assembly_batch, record_batch
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import ATOM_ORDER
from evofeed.protein.structure_text import Structure, to_model_cif, to_pdb
from evofeed.trainer.model.alphafold import AlphaFold
from evofeed.trainer.model.evoformer import MSAStack
from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.parallelize import parallelize
from evofeed.trainer.predict.plausible import implausible

SHORT = 1024
"""Residues up to which one GPU makes everything at once: 2 GiB of outer products."""
SHORT_ON_CPU = 256
"""And a CPU, where attention keeps its logits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """What the model says about a chain or a complex; numpy, without padding.

    Attributes:
        structure: atoms, with pLDDT (0 to 100) as confidence.
        plddt: `[L]`, 0 to 100.
        distogram: `[L, L, 64]` probabilities of the distance bins; in float16 above 1,024 residues.
        contacts: `[L, L]` probability that two CB atoms are within 8 Å.
        pae: `[L, L]` expected error in ångström of residue j in the frame of residue i; None for
            models without that head.
        scores: `ptm`, and of a complex `iptm` and `ranking` (0.8 ipTM + 0.2 pTM), where the model
            has the head.
    """

    structure: Structure
    plddt: np.ndarray
    distogram: np.ndarray
    contacts: np.ndarray
    pae: np.ndarray | None = None
    scores: dict[str, float] = field(default_factory=dict)

    @property
    def warning(self) -> str:
        """What is physically impossible about the structure; empty if nothing is."""
        made = self.structure
        chain = np.zeros(len(made.aatype)) if made.chain is None else made.chain
        return implausible(made.positions[:, ATOM_ORDER["CA"]], made.residue_index, chain)

    def text(self, file_format: str = "pdb") -> str:
        """The structure as `pdb` or `cif`; in PDB chains are A, B... where a name is longer."""
        if file_format not in ("pdb", "cif"):
            raise ValueError(f"format is {file_format!r}; use 'pdb' or 'cif'")
        if file_format == "cif":
            return to_model_cif(self.structure)
        short = all(len(name) == 1 for name in self.structure.chain_names)
        return to_pdb(self.structure if short else replace(self.structure, chain_names=()))


def named(record: ChainRecord | AssemblyRecord) -> tuple[str, tuple[str, ...]]:
    """What a record is called, and the author's names of its chains if it is a complex."""
    if isinstance(record, AssemblyRecord):
        return record.assembly_id, record.chain_names
    return record.chain_id, ()


def prediction_batch(
    record: ChainRecord | AssemblyRecord,
    model: AlphaFold,
    *,
    no_recycling_iters: int = 3,
    seed: int = 0,
    **sizes: Any,
) -> dict[str, Tensor]:
    """A chain of a dataset, or one of its `assemblies`, as a batch of one for a model.

    The seed is of the rows drawn from the MSA; sizes are rows and templates, as `trained_sizes`
    has them.

    Raises:
        InputError: the model is of the other kind.
    """
    of_complexes = model.config.multimer is not None
    if isinstance(record, AssemblyRecord):
        if not of_complexes:
            raise InputError(
                f"{record.assembly_id} is a complex, and these weights are of a model of single "
                "chains: take AF2-multimer's, or a run of the preset multimer"
            )
        return assembly_batch(record, no_recycling_iters=no_recycling_iters, seed=seed, **sizes)
    if of_complexes:
        raise InputError(
            f"{record.chain_id} is a chain, and these weights are of a model of complexes: name "
            "a complex of the dataset (evofeed assemblies adds them), or take a model of chains"
        )
    if not next(model.parameters()).is_cuda:
        sizes = _rows_there_are(record, sizes)
    return record_batch(record, no_recycling_iters=no_recycling_iters, seed=seed, **sizes)


def _rows_there_are(record: ChainRecord, sizes: dict[str, Any]) -> dict[str, Any]:
    """Sizes without padding for rows that the alignment does not have; a CPU feels each.

    One extra row stays, masked: AF2's outer product mean of no rows is another one.
    """
    config = LoaderConfig.prediction(**sizes)
    clusters = min(config.max_msa_clusters, record.num_alignments)
    extra = max(1, min(config.max_extra_msa, record.num_alignments - clusters))
    return sizes | {"max_msa_clusters": clusters, "max_extra_msa": extra}


def spread(model: AlphaFold, num_res: int, axis: Axis | None = None) -> AlphaFold:
    """The model as it predicts a chain, in place: fused on a GPU, shared by the ranks of an axis.

    Of long chains all that is larger than the pairs is made some rows at a time, as many as fit
    into a 64th of the GPU's memory (`trainer/parallel/rows.py`). Without an axis this rank alone
    has it.
    """
    on_gpu = next(model.parameters()).is_cuda
    if on_gpu:
        from evofeed.kernels import to_fused

        to_fused(model)
    if axis is None and num_res <= (SHORT if on_gpu else SHORT_ON_CPU):
        return model
    return parallelize(model, axis or Axis(group=None, rank=0, size=1))


Progress = Callable[[int, int], None]
"""Takes how many blocks of the stacks are done, in all passes, and how many there are."""


@torch.no_grad()
def evaluate(
    model: AlphaFold, batch: Mapping[str, Tensor], progress: Progress | None = None
) -> dict[str, Any]:
    """What the model gives for a batch in evaluation mode, in bfloat16 on a GPU.

    Of ranks that share a chain all must call it; one may go on to make a structure of it.
    """
    training = model.training
    on_gpu = batch["aatype"].device.type == "cuda"
    autocast = torch.autocast("cuda", torch.bfloat16) if on_gpu else nullcontext()
    with autocast, _watched(model, batch, progress):
        outputs: dict[str, Any] = model.eval()(batch)
    model.train(training)
    return outputs


@contextmanager
def _watched(
    model: AlphaFold, batch: Mapping[str, Tensor], progress: Progress | None
) -> Iterator[None]:
    """Within it every block that is done is told; a GPU is waited for, as it is behind."""
    if progress is None:
        yield
        return
    stacks = [module for module in model.modules() if isinstance(module, MSAStack)]
    total = batch["msa_feat"].shape[0] * sum(len(stack.blocks) for stack in stacks)
    done = itertools.count(1)

    def watch() -> None:
        if batch["aatype"].is_cuda:
            torch.cuda.synchronize(batch["aatype"].device)
        progress(next(done), total)

    for stack in stacks:
        stack.watch = watch
    try:
        yield
    finally:
        for stack in stacks:
            del stack.watch


def predict_structure(
    model: AlphaFold,
    batch: Mapping[str, Tensor],
    *,
    name: str = "prediction",
    chain_names: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> Prediction:
    """What `evaluate` gives for a batch of one sample, as a structure with its confidences.

    `chain_names` are of a complex; empty: A, B and so on.
    """
    outputs = evaluate(model, batch, progress)
    keep = batch["seq_mask"][0].bool().cpu().numpy()
    distogram = _probabilities(outputs.pop("distogram_logits"), keep)
    edges = np.linspace(2.3125, 21.6875, distogram.shape[-1] - 1)
    plddt = _numpy(outputs["plddt"])[keep]
    heads = {"ptm": "ptm_score", "iptm": "iptm_score", "ranking": "weighted_ptm_score"}
    scores = {name: float(outputs[key]) for name, key in heads.items() if key in outputs}
    structure = Structure(
        name=name,
        positions=_numpy(outputs["final_atom_positions"])[keep],
        mask=_numpy(outputs["final_atom_mask"])[keep],
        confidence=plddt,
        **residues_of(batch, keep),
        chain_names=chain_names,
        remark=", ".join(f"{name} {value:.3f}" for name, value in scores.items()),
    )
    near = int(np.searchsorted(edges, 8.0)) + 1
    contacts = distogram[..., :near].sum(-1, dtype=np.float32)
    error = outputs.get("predicted_aligned_error")
    return Prediction(
        structure=structure,
        plddt=plddt,
        distogram=distogram,
        contacts=contacts,
        pae=None if error is None else _numpy(error)[keep][:, keep],
        scores=scores,
    )


def residues_of(batch: Mapping[str, Tensor], keep: Any = slice(None)) -> dict[str, Any]:
    """What a `Structure` says of the residues of a batch's first sample, of those to keep."""
    names = {"aatype": "aatype", "residue_index": "residue_index"}
    names |= {"chain": "asym_id", "entity": "entity_id"}
    return {k: batch[name][0].cpu().numpy()[keep] for k, name in names.items() if name in batch}


def _probabilities(logits: Tensor, keep: np.ndarray) -> np.ndarray:
    """`[L, L, n]` of the residues kept of `[1, R, R, n]`, row by row.

    In float32, or twice, those of long chains fill a machine.
    """
    (rows,) = np.nonzero(keep)
    shape = len(rows), len(rows), logits.shape[-1]
    found = np.empty(shape, np.float16 if logits.shape[1] > SHORT else np.float32)
    for place, row in enumerate(rows):
        found[place] = torch.softmax(logits[0, row].float(), dim=-1).cpu().numpy()[keep]
    return found


def _numpy(value: Tensor) -> np.ndarray:
    array: np.ndarray = value[0].float().cpu().numpy()
    return array
