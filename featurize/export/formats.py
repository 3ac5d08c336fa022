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
from evofeed.featurize.export.rows import Rows, joined, species_codes, species_numbers

_MAX_TEMPLATES: Final = 20
"""What AlphaFold 3 takes."""


@dataclass(slots=True)
class Folder:
    """Where jobs are written, and what of them the other program cannot be given."""

    root: Path
    written: dict[str, Any] = field(default_factory=dict)
    """Of formats with one file for all jobs: what it says of each."""
    dates: dict[str, dict[str, str]] = field(default_factory=dict)
    """Release dates of templates by the names that they are given."""
    sources: dict[str, None] = field(default_factory=dict)
    """Names of the alignments of all jobs."""
    at_end: Callable[[Folder], None] | None = None
    """Writes that file, when all jobs are known."""
    left_out: dict[str, list[str]] = field(default_factory=dict)

    def write(self, name: str, text: str) -> str:
        """Write a file below the folder; its whole path, for programs that start elsewhere."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
        return str(path.absolute())

    def leave_out(self, job: Job, *reasons: str) -> None:
        """Note what a job loses."""
        self.left_out.setdefault(job.name, []).extend(reasons)


def write_af3(job: Job, to: Folder) -> None:
    """`<job>.json`, alignments and templates in it: AF3 itself then searches nothing."""
    codes = _codes(job)
    sequences = []
    for one in job.molecules:
        about: dict[str, Any] = {"id": list(one.ids)}
        if one.kind == "ligand":
            about["ccdCodes"] = list(one.components)
        else:
            about["sequence"] = one.sequence
            about["modifications"] = _modifications(one)
        if one.kind in ("protein", "rna"):
            about["unpairedMsa"] = joined(one.alignments)
        if one.kind == "protein":
            about["pairedMsa"] = one.pairing.a3m(codes) if one.pairing and codes else ""
            about["templates"] = [
                {
                    "mmcif": template.mmcif,
                    "queryIndices": list(template.query),
                    "templateIndices": list(range(len(template.query))),
                }
                for template in one.templates[:_MAX_TEMPLATES]
            ]
        sequences.append({one.kind: about})
    text = {
        "name": job.name,
        "modelSeeds": [1],
        "sequences": sequences,
        "bondedAtomPairs": [[list(end) for end in bond] for bond in job.bonds] or None,
        "dialect": "alphafold3",
        "version": 2,
    }
    to.write(f"{job.name}.json", json.dumps(text, indent=1))


def write_boltz(job: Job, to: Folder) -> None:
    """`inputs/<job>.yaml`, which Boltz is given; `msa/` and `templates/`, which they name."""
    import yaml

    numbers = species_numbers(_pairings(job)) if len(job.proteins) > 1 else {}
    sequences, templates = [], []
    for one in job.molecules:
        about: dict[str, Any] = {"id": list(one.ids)}
        if one.kind == "ligand":
            codes = list(one.components)
            about["ccd"] = codes if len(codes) > 1 else codes[0]
        else:
            about["sequence"] = one.sequence
            about["modifications"] = [{"position": n, "ccd": c} for n, c in one.modifications]
        if one.kind == "protein":
            table = _boltz_table(one, numbers)
            about["msa"] = to.write(f"msa/{job.name}_{one.ids[0]}.csv", table)
        sequences.append({one.kind: about})
        templates += [
            {"cif": path, "chain_id": list(one.ids)} for path in _structures(job, one, to)
        ]
    text: dict[str, Any] = {"version": 1, "sequences": sequences}
    if templates:
        text["templates"] = templates
    if job.bonds:
        text["constraints"] = [
            {"bond": {"atom1": list(one), "atom2": list(two)}} for one, two in job.bonds
        ]
    to.write(f"inputs/{job.name}.yaml", yaml.safe_dump(text, sort_keys=False))


def _boltz_table(molecule: Molecule, numbers: dict[str, int]) -> str:
    """Rows to pair with the number of their species, then the others with -1."""
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


def write_protenix(job: Job, to: Folder) -> None:
    """A job of `jobs.json`, and its alignments in `msa/<job>_<chain>/`."""
    codes = _codes(job)
    names = {"protein": "proteinChain", "rna": "rnaSequence", "dna": "dnaSequence"}
    sequences = []
    for one in job.molecules:
        about: dict[str, Any] = {"count": len(one.ids), "id": list(one.ids)}
        if one.kind == "ligand":
            about["ligand"] = "CCD_" + "_".join(one.components)
        else:
            about["sequence"] = one.sequence
            about["modifications"] = _modifications(one, "CCD_")
        folder = f"msa/{job.name}_{one.ids[0]}"
        if one.alignments and one.kind in ("protein", "rna"):
            path = to.write(f"{folder}/non_pairing.a3m", joined(one.alignments))
            about["unpairedMsaPath"] = path
        if one.pairing and codes:
            path = to.write(f"{folder}/pairing.a3m", one.pairing.a3m(codes))
            about["pairedMsaPath"] = path
        if one.templates:
            about["templatesPath"] = to.write(f"{folder}/hmmsearch.a3m", _protenix_hits(one, to))
        sequences.append({names.get(one.kind, "ligand"): about})
    where = _entities(job)
    bonds = [
        {
            f"{what}{side}": value
            for side, end in enumerate(bond, 1)
            for what, value in zip(
                ("entity", "copy", "position", "atom"), (*where[end[0]], *end[1:]), strict=True
            )
        }
        for bond in job.bonds
    ]
    to.written[job.name] = {"name": job.name, "sequences": sequences, "covalent_bonds": bonds}
    to.at_end = _protenix_jobs


def _protenix_hits(molecule: Molecule, to: Folder) -> str:
    """Templates as hits of hmmsearch, under names of four letters, which Protenix asks for."""
    hits = []
    for template in molecule.templates:
        name = np.base_repr(len(to.dates), 36).lower().zfill(4)
        to.dates[name] = {"release_date": template.date}
        to.write(f"templates/{name}.cif", template.mmcif)
        there, size = dict(zip(template.query, template.letters, strict=True)), len(template.query)
        row = "".join(there.get(place, "-") for place in range(len(molecule.sequence)))
        hits.append(f">{name}_A/1-{size} mol:protein protein length:{size}\n{row}\n")
    return "".join(hits)


def _protenix_jobs(to: Folder) -> None:
    to.write("jobs.json", json.dumps([*to.written.values()], indent=1))
    to.write("release_dates.json", json.dumps(to.dates))


def write_openfold3(job: Job, to: Folder) -> None:
    """A query of `query.json`, `msa/<job>_<chain>/*.a3m`, and `runner.yml` that names these."""
    codes = _codes(job)
    chains = []
    for one in job.molecules:
        about: dict[str, Any] = {"molecule_type": one.kind, "chain_ids": list(one.ids)}
        if one.kind == "ligand":
            about["ccd_codes"] = list(one.components)
        else:
            about["sequence"] = one.sequence
        if one.modifications:
            about["non_canonical_residues"] = dict(one.modifications)
        folder = f"msa/{job.name}_{one.ids[0]}"
        files = [to.write(f"{folder}/{rows.name}.a3m", rows.a3m()) for rows in one.alignments]
        if one.pairing and codes:
            files.append(to.write(f"{folder}/uniprot_hits.a3m", one.pairing.a3m(codes)))
        if files:
            about["main_msa_file_paths"] = files
        if one.templates:
            about["template_cif_paths"] = _structures(job, one, to)
            about["template_cif_chain_ids"] = ["A"] * len(one.templates)
        chains.append(about)
    if job.bonds:
        to.leave_out(job, f"{len(job.bonds)} covalent bonds: OpenFold3's queries take none")
    to.written[job.name] = {"chains": chains}
    to.sources |= dict.fromkeys(rows.name for one in job.molecules for rows in one.alignments)
    to.at_end = _openfold3_queries


def _openfold3_queries(to: Folder) -> None:
    to.write("query.json", json.dumps({"queries": to.written}, indent=1))
    order = [name for name in to.sources if name != "uniprot_hits"]
    counts = "".join(f"      {name}: 10000000\n" for name in [*order, "uniprot_hits"])
    text = (
        f"dataset_config_kwargs:\n  msa:\n    max_seq_counts:\n{counts}"
        f"    msas_to_pair: [uniprot_hits]\n    aln_order: {json.dumps(order)}\n"
    )
    to.write("runner.yml", text)


def write_openfold(job: Job, to: Folder) -> None:
    """`alignments/<job>_<chain>/*.a3m` of every protein, and `fasta/<job>.fasta` of all."""
    text = ""
    for one in job.molecules:
        if one.kind != "protein":
            to.leave_out(job, f"{one.kind} {','.join(one.ids)}: OpenFold takes proteins")
            continue
        name = job.name if len(job.molecules) == 1 else f"{job.name}_{one.ids[0]}"
        for rows in one.alignments:
            to.write(f"alignments/{name}/{rows.name}.a3m", rows.a3m())
        if one.pairing and len(job.proteins) > 1:
            to.write(f"alignments/{name}/uniprot_hits.a3m", one.pairing.a3m(_codes(job)))
        if one.templates:
            to.leave_out(job, f"{len(one.templates)} templates: OpenFold reads files of hits")
        text += "".join(f">{name}\n{one.sequence}\n" for _ in one.ids)
    if text:
        to.write(f"fasta/{job.name}.fasta", text)


def _structures(job: Job, molecule: Molecule, to: Folder) -> list[str]:
    """Its templates as files."""
    name = f"templates/{job.name}_{molecule.ids[0]}"
    return [to.write(f"{name}_{n}.cif", one.mmcif) for n, one in enumerate(molecule.templates)]


def _modifications(molecule: Molecule, prefix: str = "") -> list[dict[str, Any]]:
    """Changed residues in the words that AlphaFold 3 and Protenix share."""
    is_protein = molecule.kind == "protein"
    kind, at = ("ptmType", "ptmPosition") if is_protein else ("modificationType", "basePosition")
    return [{kind: prefix + code, at: row} for row, code in molecule.modifications]


def _entities(job: Job) -> dict[str, tuple[int, int]]:
    """Molecule and copy of every chain, from 1."""
    return {
        name: (entity, copy)
        for entity, one in enumerate(job.molecules, 1)
        for copy, name in enumerate(one.ids, 1)
    }


def _pairings(job: Job) -> Iterable[Rows]:
    return (one.pairing for one in job.proteins if one.pairing is not None)


def _codes(job: Job) -> dict[str, str]:
    """Species as headers have them; empty where there is nothing to pair."""
    return species_codes(_pairings(job)) if len(job.proteins) > 1 else {}


FORMATS: Final[dict[str, Callable[[Job, Folder], None]]] = {
    "af3": write_af3,
    "boltz": write_boltz,
    "openfold": write_openfold,
    "openfold3": write_openfold3,
    "protenix": write_protenix,
}
"""Writers by name."""
