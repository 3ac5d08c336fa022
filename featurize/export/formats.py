"""Jobs in the files of AlphaFold 3, Boltz, Protenix, OpenFold3 and OpenFold, one function each."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from evofeed.base.files import write_atomic
from evofeed.featurize.export.jobs import Job, Molecule
from evofeed.featurize.export.rows import Rows, concatenated_a3m, species_codes, species_numbers

_MAX_TEMPLATES: Final = 20
"""Largest number of templates that AlphaFold 3 accepts."""


@dataclass(slots=True)
class ExportFolder:
    """The folder of written jobs, and a list of what their format cannot have."""

    root: Path
    jobs: dict[str, Any] = field(default_factory=dict)
    """Items by job, for formats with one file for all jobs."""
    dates: dict[str, dict[str, str]] = field(default_factory=dict)
    """Release dates of templates by their names in this folder."""
    sources: dict[str, None] = field(default_factory=dict)
    """Names of the alignments of all jobs."""
    finish: Callable[[ExportFolder], None] | None = None
    """Writes the files of all jobs, after the last one."""
    left_out: dict[str, list[str]] = field(default_factory=dict)

    def write(self, name: str, text: str) -> str:
        """Writes a file below the folder; returns its absolute path, valid in any directory."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
        return str(path.absolute())

    def leave_out(self, job: Job, *reasons: str) -> None:
        """Records what is left out of a job."""
        self.left_out.setdefault(job.name, []).extend(reasons)


def write_af3(job: Job, folder: ExportFolder) -> None:
    """Writes `<job>.json` with alignments and templates, so that AF3 searches nothing."""
    codes = _codes(job)
    sequences = []
    for molecule in job.molecules:
        fields: dict[str, Any] = {"id": list(molecule.ids)}
        if molecule.kind == "ligand":
            fields["ccdCodes"] = list(molecule.components)
        else:
            fields["sequence"] = molecule.sequence
            fields["modifications"] = _modifications(molecule)
        if molecule.kind in ("protein", "rna"):
            fields["unpairedMsa"] = concatenated_a3m(molecule.alignments)
        if molecule.kind == "protein":
            fields["pairedMsa"] = molecule.pairing.a3m(codes) if molecule.pairing and codes else ""
            fields["templates"] = [
                {
                    "mmcif": template.mmcif,
                    "queryIndices": list(template.query),
                    "templateIndices": list(range(len(template.query))),
                }
                for template in molecule.templates[:_MAX_TEMPLATES]
            ]
        sequences.append({molecule.kind: fields})
    text = {
        "name": job.name,
        "modelSeeds": [1],
        "sequences": sequences,
        "bondedAtomPairs": [[list(end) for end in bond] for bond in job.bonds] or None,
        "dialect": "alphafold3",
        "version": 2,
    }
    folder.write(f"{job.name}.json", json.dumps(text, indent=1))


def write_boltz(job: Job, folder: ExportFolder) -> None:
    """Writes `inputs/<job>.yaml` for Boltz, and its files in `msa/` and `templates/`."""
    import yaml

    numbers = species_numbers(_pairings(job)) if len(job.proteins) > 1 else {}
    sequences, templates = [], []
    for molecule in job.molecules:
        fields: dict[str, Any] = {"id": list(molecule.ids)}
        if molecule.kind == "ligand":
            codes = list(molecule.components)
            fields["ccd"] = codes if len(codes) > 1 else codes[0]
        else:
            fields["sequence"] = molecule.sequence
            fields["modifications"] = [{"position": n, "ccd": c} for n, c in molecule.modifications]
        if molecule.kind == "protein":
            table = _boltz_table(molecule, numbers)
            fields["msa"] = folder.write(f"msa/{job.name}_{molecule.ids[0]}.csv", table)
        sequences.append({molecule.kind: fields})
        paths = _template_files(job, molecule, folder)
        templates += [{"cif": path, "chain_id": list(molecule.ids)} for path in paths]
    text: dict[str, Any] = {"version": 1, "sequences": sequences}
    if templates:
        text["templates"] = templates
    if job.bonds:
        text["constraints"] = [
            {"bond": {"atom1": list(first), "atom2": list(second)}} for first, second in job.bonds
        ]
    folder.write(f"inputs/{job.name}.yaml", yaml.safe_dump(text, sort_keys=False))


def _boltz_table(molecule: Molecule, numbers: dict[str, int]) -> str:
    """A table of rows to pair with the number of their species, then the others with -1."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["key", "sequence"])
    writer.writerow([-1, molecule.sequence])
    if molecule.pairing and numbers:
        texts = zip(molecule.pairing.species[1:], molecule.pairing.texts()[1:], strict=True)
        writer.writerows([numbers[name], text] for name, text in texts if name)
    for rows in molecule.alignments:
        writer.writerows([-1, text] for text in rows.texts()[1:])
    return out.getvalue()


def write_protenix(job: Job, folder: ExportFolder) -> None:
    """Writes a job of `jobs.json`, and its alignments in `msa/<job>_<chain>/`."""
    codes = _codes(job)
    names = {"protein": "proteinChain", "rna": "rnaSequence", "dna": "dnaSequence"}
    sequences = []
    for molecule in job.molecules:
        fields: dict[str, Any] = {"count": len(molecule.ids), "id": list(molecule.ids)}
        if molecule.kind == "ligand":
            fields["ligand"] = "CCD_" + "_".join(molecule.components)
        else:
            fields["sequence"] = molecule.sequence
            fields["modifications"] = _modifications(molecule, "CCD_")
        msa = f"msa/{job.name}_{molecule.ids[0]}"
        if molecule.alignments and molecule.kind in ("protein", "rna"):
            path = folder.write(f"{msa}/non_pairing.a3m", concatenated_a3m(molecule.alignments))
            fields["unpairedMsaPath"] = path
        if molecule.pairing and codes:
            path = folder.write(f"{msa}/pairing.a3m", molecule.pairing.a3m(codes))
            fields["pairedMsaPath"] = path
        if molecule.templates:
            hits = _protenix_hits(molecule, folder)
            fields["templatesPath"] = folder.write(f"{msa}/hmmsearch.a3m", hits)
        sequences.append({names.get(molecule.kind, "ligand"): fields})
    numbers = _entity_and_copy(job)
    bonds = [
        {
            f"{label}{side}": value
            for side, end in enumerate(bond, 1)
            for label, value in zip(
                ("entity", "copy", "position", "atom"), (*numbers[end[0]], *end[1:]), strict=True
            )
        }
        for bond in job.bonds
    ]
    folder.jobs[job.name] = {"name": job.name, "sequences": sequences, "covalent_bonds": bonds}
    folder.finish = _protenix_jobs


def _protenix_hits(molecule: Molecule, folder: ExportFolder) -> str:
    """Templates as hits of hmmsearch, with names of four letters, as Protenix requires."""
    hits = []
    for template in molecule.templates:
        name = np.base_repr(len(folder.dates), 36).lower().zfill(4)
        folder.dates[name] = {"release_date": template.date}
        folder.write(f"templates/{name}.cif", template.mmcif)
        letters = dict(zip(template.query, template.letters, strict=True))
        size = len(letters)
        row = "".join(letters.get(column, "-") for column in range(len(molecule.sequence)))
        hits.append(f">{name}_A/1-{size} mol:protein protein length:{size}\n{row}\n")
    return "".join(hits)


def _protenix_jobs(folder: ExportFolder) -> None:
    folder.write("jobs.json", json.dumps([*folder.jobs.values()], indent=1))
    folder.write("release_dates.json", json.dumps(folder.dates))


def write_openfold3(job: Job, folder: ExportFolder) -> None:
    """Writes a query of `query.json`, `msa/<job>_<chain>/*.a3m`, and `runner.yml` for them."""
    codes = _codes(job)
    chains = []
    for molecule in job.molecules:
        fields: dict[str, Any] = {"molecule_type": molecule.kind, "chain_ids": list(molecule.ids)}
        if molecule.kind == "ligand":
            fields["ccd_codes"] = list(molecule.components)
        else:
            fields["sequence"] = molecule.sequence
        if molecule.modifications:
            fields["non_canonical_residues"] = dict(molecule.modifications)
        msa = f"msa/{job.name}_{molecule.ids[0]}"
        alignments = molecule.alignments
        files = [folder.write(f"{msa}/{rows.name}.a3m", rows.a3m()) for rows in alignments]
        if molecule.pairing and codes:
            files.append(folder.write(f"{msa}/uniprot_hits.a3m", molecule.pairing.a3m(codes)))
        folder.sources |= dict.fromkeys(rows.name for rows in alignments)
        if files:
            fields["main_msa_file_paths"] = files
        if molecule.templates:
            fields["template_cif_paths"] = _template_files(job, molecule, folder)
            fields["template_cif_chain_ids"] = ["A"] * len(molecule.templates)
        chains.append(fields)
    if job.bonds:
        folder.leave_out(job, f"{len(job.bonds)} covalent bonds: OpenFold3's queries accept none")
    folder.jobs[job.name] = {"chains": chains}
    folder.finish = _openfold3_queries


def _openfold3_queries(folder: ExportFolder) -> None:
    folder.write("query.json", json.dumps({"queries": folder.jobs}, indent=1))
    order = [name for name in folder.sources if name != "uniprot_hits"]
    counts = "".join(f"      {name}: 10000000\n" for name in [*order, "uniprot_hits"])
    text = (
        f"dataset_config_kwargs:\n  msa:\n    max_seq_counts:\n{counts}"
        f"    msas_to_pair: [uniprot_hits]\n    aln_order: {json.dumps(order)}\n"
    )
    folder.write("runner.yml", text)


def write_openfold(job: Job, folder: ExportFolder) -> None:
    """Writes `alignments/<job>_<chain>/*.a3m` of every protein, and `fasta/<job>.fasta` of all."""
    text = ""
    for molecule in job.molecules:
        if molecule.kind != "protein":
            chains = ",".join(molecule.ids)
            folder.leave_out(job, f"{molecule.kind} {chains}: OpenFold accepts only proteins")
            continue
        name = job.name if len(job.molecules) == 1 else f"{job.name}_{molecule.ids[0]}"
        for rows in molecule.alignments:
            folder.write(f"alignments/{name}/{rows.name}.a3m", rows.a3m())
        if molecule.pairing and len(job.proteins) > 1:
            folder.write(f"alignments/{name}/uniprot_hits.a3m", molecule.pairing.a3m(_codes(job)))
        if molecule.templates:
            count = len(molecule.templates)
            folder.leave_out(job, f"{count} templates: OpenFold reads files of hits")
        text += "".join(f">{name}\n{molecule.sequence}\n" for _ in molecule.ids)
    if text:
        folder.write(f"fasta/{job.name}.fasta", text)


def _template_files(job: Job, molecule: Molecule, folder: ExportFolder) -> list[str]:
    """Writes a molecule's templates and returns their paths."""
    name = f"templates/{job.name}_{molecule.ids[0]}"
    texts = [template.mmcif for template in molecule.templates]
    return [folder.write(f"{name}_{n}.cif", text) for n, text in enumerate(texts)]


def _modifications(molecule: Molecule, prefix: str = "") -> list[dict[str, Any]]:
    """Modified residues with the keys that AlphaFold 3 and Protenix share."""
    is_protein = molecule.kind == "protein"
    names = ("ptmType", "ptmPosition") if is_protein else ("modificationType", "basePosition")
    return [{names[0]: prefix + code, names[1]: row} for row, code in molecule.modifications]


def _entity_and_copy(job: Job) -> dict[str, tuple[int, int]]:
    """Number of the molecule and of the copy of every chain, from 1."""
    return {
        name: (entity, copy)
        for entity, molecule in enumerate(job.molecules, 1)
        for copy, name in enumerate(molecule.ids, 1)
    }


def _pairings(job: Job) -> Iterable[Rows]:
    return (molecule.pairing for molecule in job.proteins if molecule.pairing is not None)


def _codes(job: Job) -> dict[str, str]:
    """Codes of species for headers; empty if there is nothing to pair."""
    return species_codes(_pairings(job)) if len(job.proteins) > 1 else {}


FORMATS: Final[dict[str, Callable[[Job, ExportFolder], None]]] = {
    "af3": write_af3,
    "boltz": write_boltz,
    "openfold": write_openfold,
    "openfold3": write_openfold3,
    "protenix": write_protenix,
}
"""Writers by name."""
