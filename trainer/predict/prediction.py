"""Prediction of one chain or complex by a model: a structure with its confidences."""

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
"""Residues up to which one GPU needs no chunks: 2 GiB of outer products."""
SHORT_ON_CPU = 256
"""The same of a CPU, where attention stores its logits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """The model's outputs for a chain or a complex, as numpy arrays without padding.

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
        """A sentence on why the structure is physically impossible; empty if it is plausible."""
        structure = self.structure
        chain = np.zeros(len(structure.aatype)) if structure.chain is None else structure.chain
        ca = structure.positions[:, ATOM_ORDER["CA"]]
        return implausible(ca, structure.residue_index, chain)

    def text(self, file_format: str = "pdb") -> str:
        """The structure as `pdb` or `cif`; PDB chains become A, B... if a name is too long."""
        if file_format not in ("pdb", "cif"):
            raise ValueError(f"format is {file_format!r}; use 'pdb' or 'cif'")
        if file_format == "cif":
            return to_model_cif(self.structure)
        short = all(len(name) == 1 for name in self.structure.chain_names)
        return to_pdb(self.structure if short else replace(self.structure, chain_names=()))


def record_names(record: ChainRecord | AssemblyRecord) -> tuple[str, tuple[str, ...]]:
    """The id of a record, and the author's chain names if it is a complex."""
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
    """A batch of one for a model, from a chain of a dataset or one of its `assemblies`.

    The seed draws rows of the MSA; `sizes` are numbers of rows and templates, as `trained_sizes`
    returns them.

    Raises:
        InputError: the record is a complex and the model one of chains, or the reverse.
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
        sizes = _unpadded_sizes(record, sizes)
    return record_batch(record, no_recycling_iters=no_recycling_iters, seed=seed, **sizes)


def _unpadded_sizes(record: ChainRecord, sizes: dict[str, Any]) -> dict[str, Any]:
    """Sizes without padding rows, which would cost time on a CPU.

    One extra row stays, masked: AF2's outer product mean without rows is different.
    """
    config = LoaderConfig.prediction(**sizes)
    clusters = min(config.max_msa_clusters, record.num_alignments)
    extra = max(1, min(config.max_extra_msa, record.num_alignments - clusters))
    return sizes | {"max_msa_clusters": clusters, "max_extra_msa": extra}


def prepare_model(model: AlphaFold, num_res: int, axis: Axis | None = None) -> AlphaFold:
    """The model, changed in place for prediction: fused on a GPU, shared by the ranks of an axis.

    For long chains intermediates larger than the pairs are made in chunks of rows, as many as fit
    into a 64th of the GPU's memory (`trainer/parallel/rows.py`). Without an axis this rank works
    alone.
    """
    on_gpu = next(model.parameters()).is_cuda
    if on_gpu:
        from evofeed.kernels import to_fused

        to_fused(model)
    if axis is None and num_res <= (SHORT if on_gpu else SHORT_ON_CPU):
        return model
    return parallelize(model, axis or Axis(group=None, rank=0, size=1))


Progress = Callable[[int, int], None]
"""Called with the number of finished blocks of the stacks, over all passes, and their total."""


@torch.no_grad()
def evaluate(
    model: AlphaFold, batch: Mapping[str, Tensor], progress: Progress | None = None
) -> dict[str, Any]:
    """The model's outputs for a batch in evaluation mode, in bfloat16 on a GPU.

    All ranks that share a chain must call it; one of them may make a structure of the outputs.
    """
    training = model.training
    on_gpu = batch["aatype"].device.type == "cuda"
    autocast = torch.autocast("cuda", torch.bfloat16) if on_gpu else nullcontext()
    with autocast, _reporting(model, batch, progress):
        outputs: dict[str, Any] = model.eval()(batch)
    model.train(training)
    return outputs


@contextmanager
def _reporting(
    model: AlphaFold, batch: Mapping[str, Tensor], progress: Progress | None
) -> Iterator[None]:
    """A context that reports every finished block; it waits for a GPU, which runs behind."""
    if progress is None:
        yield
        return
    stacks = [module for module in model.modules() if isinstance(module, MSAStack)]
    total = batch["msa_feat"].shape[0] * sum(len(stack.blocks) for stack in stacks)
    done = itertools.count(1)

    def on_block() -> None:
        if batch["aatype"].is_cuda:
            torch.cuda.synchronize(batch["aatype"].device)
        progress(next(done), total)

    for stack in stacks:
        stack.on_block = on_block
    try:
        yield
    finally:
        for stack in stacks:
            del stack.on_block


def predict_structure(
    model: AlphaFold,
    batch: Mapping[str, Tensor],
    *,
    name: str = "prediction",
    chain_names: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> Prediction:
    """The structure and confidences that `evaluate` gives for a batch of one sample.

    `chain_names` are those of a complex; empty: A, B and so on.
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
    """Fields of a `Structure` by residue, of a batch's first sample, for the residues to keep."""
    names = {"aatype": "aatype", "residue_index": "residue_index"}
    names |= {"chain": "asym_id", "entity": "entity_id"}
    return {k: batch[name][0].cpu().numpy()[keep] for k, name in names.items() if name in batch}


def _probabilities(logits: Tensor, keep: np.ndarray) -> np.ndarray:
    """Softmax `[L, L, n]` of logits `[1, R, R, n]`, of the residues to keep, row by row.

    All rows at once, or float32, would fill a machine's memory for long chains.
    """
    (rows,) = np.nonzero(keep)
    shape = len(rows), len(rows), logits.shape[-1]
    probabilities = np.empty(shape, np.float16 if logits.shape[1] > SHORT else np.float32)
    for i, row in enumerate(rows):
        probabilities[i] = torch.softmax(logits[0, row].float(), dim=-1).cpu().numpy()[keep]
    return probabilities


def _numpy(value: Tensor) -> np.ndarray:
    array: np.ndarray = value[0].float().cpu().numpy()
    return array
