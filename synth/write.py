"""A simulated dataset on disk, in the flattened layout of OpenProteinSet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evofeed.base.files import scratch_folder
from evofeed.protein.residues import GAP
from evofeed.synth import formats
from evofeed.synth.complexes import read_stoichiometry, simulate_family, species_names
from evofeed.synth.families import FamilySet, Member, family_sizes, homologs, template_hits
from evofeed.synth.mmcif import mmcif


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthReport:
    """Counts of a simulated dataset."""

    out_dir: str
    num_chains: int
    num_families: int
    num_bytes: int
    num_complexes: int = 0


def write_synthetic(
    out_dir: str | Path,
    num_chains: int,
    seed: int = 0,
    *,
    mean_length: int = 100,
    mean_depth: int = 120,
    mean_members: int = 6,
    stoichiometries: Sequence[str] = (),
    progress: Callable[[float], None] | None = None,
) -> SynthReport:
    """Write `num_chains` simulated chains; the same arguments give the same bytes.

    With `stoichiometries` it writes that many complexes: entries of several chains whose interfaces
    covary, alignments of one chain per sequence, `uniprot_hits.sto` with species for pairing.

    `out_dir` gets `alignments/<id>_<chain>/{bfd_uniclust_hits.a3m, uniref90_hits.sto,
    mgnify_hits.sto, pdb70_hits.hhr}`, `mmcif/<id>.cif` and `clusters.txt` (one family per line).

    Args:
        out_dir: created if missing; must not hold another dataset.
        num_chains: number of chains, or of complexes; at least 1.
        mean_members: chains with a structure in a typical family.
        stoichiometries: such as `A2`, `AB`, `A2B2`; each family gets one, in turn.
        progress: called with the written share, 0 to 1, after each family.
    """
    if num_chains < 1 or mean_length < 30 or mean_depth < 16:
        raise ValueError(
            f"num_chains={num_chains} mean_length={mean_length} mean_depth={mean_depth}: "
            "want >= 1, >= 30 and >= 16"
        )
    for text in stoichiometries:
        read_stoichiometry(text)
    out = Path(out_dir)
    parts = ("mmcif", "clusters.txt", "alignments")
    for name in parts:
        if (out / name).exists():
            raise ValueError(f"{out} already holds {name}; choose an empty folder")
    out.mkdir(parents=True, exist_ok=True)
    with scratch_folder(".unfinished-", str(out)) as root:
        for name in ("alignments", "mmcif"):
            (root / name).mkdir()
        sizes = tuple(family_sizes(seed, num_chains, mean_members))
        num_bytes, written, clusters = 0, 0, []
        previous: FamilySet | None = None
        for number, size in enumerate(sizes):
            chains = stoichiometries[number % len(stoichiometries)] if stoichiometries else ""
            entities = simulate_family(seed, number, chains, size, written, mean_length, mean_depth)
            for entity, family in enumerate(entities):
                stream = [seed, number, 1, *([entity] if stoichiometries else [])]
                num_bytes += _write_family(root, stream, family, previous, len(entities) > 1)
                names = (m.chain_id[:4].upper() + m.chain_id[4:] for m in family.members)
                clusters.append(" ".join(names))
            for member in entities[0].members:
                path = root / "mmcif" / f"{member.entry.entry_id}.cif"
                num_bytes += path.write_bytes(mmcif(member.entry).encode())
            previous, written = entities[0], written + size
            if progress:
                progress(written / num_chains)
        (root / "clusters.txt").write_text("\n".join(clusters) + "\n")
        for name in parts:
            (root / name).rename(out / name)
    return SynthReport(
        out_dir=str(out),
        num_chains=len(list((out / "alignments").iterdir())),
        num_complexes=num_chains if stoichiometries else 0,
        num_families=len(sizes),
        num_bytes=num_bytes,
    )


def _write_family(
    root: Path, stream: list[int], family: FamilySet, previous: FamilySet | None, is_complex: bool
) -> int:
    """Write the alignments of a family's members; returns their size in bytes."""
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(stream)))
    num_bytes = 0
    for member in family.members:
        folder = root / "alignments" / member.chain_id
        folder.mkdir(parents=True)
        unrelated = [] if previous is None else [_unrelated_hit(rng, member, previous.members[0])]
        files = _alignment_files(rng, member, family, unrelated)
        if is_complex:
            files["uniprot_hits.sto"] = _uniprot_hits(rng, member, family)
        for name, text in files.items():
            num_bytes += (folder / name).write_bytes(text.encode())
    return num_bytes


def _alignment_files(
    rng: np.random.Generator, member: Member, family: FamilySet, unrelated: list[formats.Hit]
) -> dict[str, str]:
    """Texts of a member's alignments and template hits, by file name."""
    query = member.row[None]
    files = {}
    for database, share in (("uniref90", 0.6), ("mgnify", 0.4), ("bfd_uniclust", 0.7)):
        rows = homologs(rng, family.family, share)
        rows = rows[_best_first(member.row, rows)]
        names = [member.chain_id, *_hit_names(rng, database, rows)]
        rows = np.concatenate([query, rows])
        if database == "bfd_uniclust":
            titles = [f"{name} Simulated homolog n=1" for name in names[1:]]
            files["bfd_uniclust_hits.a3m"] = formats.a3m([member.chain_id, *titles], rows)
        else:
            descriptions = ["", *["[subseq from] simulated homolog"] * (len(names) - 1)]
            files[f"{database}_hits.sto"] = formats.stockholm(names, descriptions, rows)
    hits = template_hits(rng, member, list(family.members)) + unrelated
    files["pdb70_hits.hhr"] = formats.hhr(
        member.chain_id, member.row, len(family.family.rows), hits
    )
    return files


def _uniprot_hits(rng: np.random.Generator, member: Member, family: FamilySet) -> str:
    """A Stockholm alignment of most organisms, with UniProt names, which have the species."""
    leaves = family.family.rows[1:]
    hits = np.flatnonzero(rng.random(len(leaves)) < 0.85)
    hits = hits[_best_first(member.row, leaves[hits])]
    species = species_names(len(leaves))
    accessions = [f"A0A{number:07d}" for number in rng.integers(10**7, size=len(hits)).tolist()]
    names = [
        f"tr|{accession}|{accession}_{species[leaf]}/1-{(leaves[leaf] != GAP).sum()}"
        for accession, leaf in zip(accessions, hits.tolist(), strict=True)
    ]
    rows = np.concatenate([member.row[None], leaves[hits]])
    return formats.stockholm([member.chain_id, *names], [""] * len(rows), rows)


def _best_first(query: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Order of rows by identical residues, similar to that of E-values."""
    identical = ((rows == query) & (query != GAP)).sum(axis=1)
    aligned = ((rows != GAP) & (query != GAP)).sum(axis=1)
    return np.argsort(-identical, kind="stable")[: int((aligned > 9).sum())]


def _hit_names(rng: np.random.Generator, database: str, rows: np.ndarray) -> list[str]:
    """Random names of hits with their spans, in each database's style."""
    styles = {"mgnify": "MGYP{:012d}", "uniref90": "UniRef90_S{:08d}"}
    template = styles.get(database, "UniRef100_S{:08d}") + "/{}-{}"
    numbers = rng.integers(10**8, size=len(rows))
    starts = rng.integers(1, 300, size=len(rows))
    ends = starts + (rows != GAP).sum(axis=1) - 1
    spans = zip(numbers.tolist(), starts.tolist(), ends.tolist(), strict=True)
    return [template.format(*span) for span in spans]


def _unrelated_hit(rng: np.random.Generator, member: Member, other: Member) -> formats.Hit:
    """A weak hit to another family: a short segment aligned without gaps."""
    query, template = member.row[member.row != GAP], other.row[other.row != GAP]
    length = min(int(rng.integers(8, 25)), len(query), len(template))
    q_start = int(rng.integers(len(query) - length + 1))
    t_start = int(rng.integers(len(template) - length + 1))
    # Columns: residues before the segment (the query's, the template's), the segment, those after.
    segment = slice(q_start + t_start, q_start + t_start + length)
    q = np.full(len(query) + len(template) - length, np.uint8(GAP))
    t = q.copy()
    q[:q_start], t[q_start : segment.start] = query[:q_start], template[:t_start]
    q_rest, t_rest = query[q_start:], template[t_start:]
    q[segment.start : segment.start + len(q_rest)] = q_rest
    t[segment], t[segment.start + len(q_rest) :] = t_rest[:length], t_rest[length:]
    return formats.Hit(
        name=other.chain_id[:4].upper() + other.chain_id[4:],
        description="Simulated protein; another family {synthetic construct}",
        query=q,
        template=t,
        prob=round(float(rng.uniform(1, 30)), 2),
    )
