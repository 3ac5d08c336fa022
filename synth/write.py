"""A whole simulated dataset on disk, in the layout of OpenProteinSet (flattened)."""

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
    """What was written."""

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

    With `stoichiometries` they are so many complexes: entries of several chains whose interfaces
    covary, alignments of one chain of each sequence, `uniprot_hits.sto` with species to pair by.

    `out_dir` gets `alignments/<id>_<chain>/{bfd_uniclust_hits.a3m, uniref90_hits.sto,
    mgnify_hits.sto, pdb70_hits.hhr}`, `mmcif/<id>.cif` and `clusters.txt` (one family a line).

    Args:
        out_dir: made if missing; must hold no other dataset.
        num_chains: chains, or complexes; at least 1.
        mean_members: chains with a structure in a typical family.
        stoichiometries: such as `A2`, `AB`, `A2B2`; each family gets one, in turn.
        progress: called as families are written, with the share that is done.
    """
    if num_chains < 1 or mean_length < 30 or mean_depth < 16:
        raise ValueError(
            f"num_chains={num_chains} mean_length={mean_length} mean_depth={mean_depth}: "
            "want >= 1, >= 30 and >= 16"
        )
    for text in stoichiometries:
        read_stoichiometry(text)
    out = Path(out_dir)
    made = ("mmcif", "clusters.txt", "alignments")
    for name in made:
        if (out / name).exists():
            raise ValueError(f"{out} already holds {name}; choose an empty folder")
    out.mkdir(parents=True, exist_ok=True)
    with scratch_folder(".unfinished-", str(out)) as root:
        for name in ("alignments", "mmcif"):
            (root / name).mkdir()
        sizes = tuple(family_sizes(seed, num_chains, mean_members))
        num_bytes, done, clusters = 0, 0, []
        previous: FamilySet | None = None
        for number, size in enumerate(sizes):
            kind = stoichiometries[number % len(stoichiometries)] if stoichiometries else ""
            entities = simulate_family(seed, number, kind, size, done, mean_length, mean_depth)
            for entity, family in enumerate(entities):
                stream = [seed, number, 1, *([entity] if stoichiometries else [])]
                num_bytes += _write_family(root, stream, family, previous, len(entities) > 1)
                names = (m.chain_id[:4].upper() + m.chain_id[4:] for m in family.members)
                clusters.append(" ".join(names))
            for member in entities[0].members:
                path = root / "mmcif" / f"{member.entry.entry_id}.cif"
                num_bytes += path.write_bytes(mmcif(member.entry).encode())
            previous, done = entities[0], done + size
            if progress:
                progress(done / num_chains)
        (root / "clusters.txt").write_text("\n".join(clusters) + "\n")
        for name in made:
            (root / name).rename(out / name)
    return SynthReport(
        out_dir=str(out),
        num_chains=len(list((out / "alignments").iterdir())),
        num_complexes=num_chains if stoichiometries else 0,
        num_families=len(sizes),
        num_bytes=num_bytes,
    )


def _write_family(
    root: Path, stream: list[int], family: FamilySet, previous: FamilySet | None, paired: bool
) -> int:
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(stream)))
    num_bytes = 0
    for member in family.members:
        folder = root / "alignments" / member.chain_id
        folder.mkdir(parents=True)
        stranger = [] if previous is None else [_stranger(rng, member, previous.members[0])]
        files = _alignment_files(rng, member, family, stranger)
        if paired:
            files["uniprot_hits.sto"] = _uniprot(rng, member, family)
        for name, text in files.items():
            num_bytes += (folder / name).write_bytes(text.encode())
    return num_bytes


def _alignment_files(
    rng: np.random.Generator, member: Member, family: FamilySet, stranger: list[formats.Hit]
) -> dict[str, str]:
    query = member.row[None]
    files = {}
    for database, share in (("uniref90", 0.6), ("mgnify", 0.4), ("bfd_uniclust", 0.7)):
        rows = homologs(rng, family.family, share)
        rows = rows[_best_first(member.row, rows)]
        names = _names(rng, database, rows)
        rows = np.concatenate([query, rows])
        if database == "bfd_uniclust":
            titles = [f"{n} Simulated homolog n=1" for n in names]
            files["bfd_uniclust_hits.a3m"] = formats.a3m([member.chain_id, *titles], rows)
        else:
            text = formats.stockholm(
                [member.chain_id, *names],
                [""] + ["[subseq from] simulated homolog"] * len(names),
                rows,
            )
            files[f"{database}_hits.sto"] = text
    hits = template_hits(rng, member, list(family.members)) + stranger
    files["pdb70_hits.hhr"] = formats.hhr(
        member.chain_id, member.row, len(family.family.rows), hits
    )
    return files


def _uniprot(rng: np.random.Generator, member: Member, family: FamilySet) -> str:
    """Most organisms' rows under UniProt's names, which say the species."""
    leaves = family.family.rows[1:]
    kept = np.flatnonzero(rng.random(len(leaves)) < 0.85)
    kept = kept[_best_first(member.row, leaves[kept])]
    species = species_names(len(leaves))
    accessions = [f"A0A{number:07d}" for number in rng.integers(10**7, size=len(kept)).tolist()]
    names = [
        f"tr|{accession}|{accession}_{species[leaf]}/1-{(leaves[leaf] != GAP).sum()}"
        for accession, leaf in zip(accessions, kept.tolist(), strict=True)
    ]
    rows = np.concatenate([member.row[None], leaves[kept]])
    return formats.stockholm([member.chain_id, *names], [""] * len(rows), rows)


def _best_first(query: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Order of rows by how much of the query they repeat, as a search by E-value would list."""
    same = ((rows == query) & (query != GAP)).sum(axis=1)
    shared = ((rows != GAP) & (query != GAP)).sum(axis=1)
    return np.argsort(-same, kind="stable")[: int((shared > 9).sum())]


def _names(rng: np.random.Generator, database: str, rows: np.ndarray) -> list[str]:
    """Names with the span of the hit, as each database writes them."""
    style = {"mgnify": "MGYP{:012d}", "uniref90": "UniRef90_S{:08d}"}
    form = style.get(database, "UniRef100_S{:08d}") + "/{}-{}"
    numbers = rng.integers(10**8, size=len(rows))
    starts = rng.integers(1, 300, size=len(rows))
    ends = starts + (rows != GAP).sum(axis=1) - 1
    spans = zip(numbers.tolist(), starts.tolist(), ends.tolist(), strict=True)
    return [form.format(*span) for span in spans]


def _stranger(rng: np.random.Generator, member: Member, other: Member) -> formats.Hit:
    """A weak hit to another family: a short stretch aligned without gaps."""
    mine, theirs = np.flatnonzero(member.row != GAP), np.flatnonzero(other.row != GAP)
    length = min(int(rng.integers(8, 25)), len(mine), len(theirs))
    start, at = rng.integers(len(mine) - length + 1), rng.integers(len(theirs) - length + 1)
    before, t_before = int(start), int(at)
    after, t_after = len(mine) - before - length, len(theirs) - t_before - length
    # lay both out on columns of their own: what comes before, the stretch, what follows
    gap = np.uint8(GAP)
    q = np.full(before + t_before + length + after + t_after, gap)
    t = q.copy()
    stretch = slice(before + t_before, before + t_before + length)
    q[:before], t[before : stretch.start] = member.row[mine[:before]], other.row[theirs[:t_before]]
    q[stretch] = member.row[mine[before : before + length]]
    t[stretch] = other.row[theirs[t_before : t_before + length]]
    q[stretch.stop : stretch.stop + after] = member.row[mine[before + length :]]
    t[stretch.stop + after :] = other.row[theirs[t_before + length :]]
    return formats.Hit(
        name=other.chain_id[:4].upper() + other.chain_id[4:],
        description="Simulated protein; another family {synthetic construct}",
        query=q,
        template=t,
        prob=round(float(rng.uniform(1, 30)), 2),
    )
