"""Each layout of an input -> its chain sources, with what is beside them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evofeed.errors import InputError
from evofeed.featurize.alignment_db import DbEntry, read_index
from evofeed.featurize.fasta import parse_fasta
from evofeed.featurize.listing import list_chains
from evofeed.featurize.queries import query_of
from evofeed.featurize.reading import PACKED, file_ref, plain, read_bytes, read_head
from evofeed.featurize.roads.af2_multimer import chain_folders, from_target
from evofeed.featurize.roads.colabfold import assembly_in, from_complex
from evofeed.featurize.roads.molecules import Molecule, is_other, molecule_of, no_protein
from evofeed.featurize.roads.tables import alignment_file, alignment_named, chai_name, stem
from evofeed.featurize.sources import SUBFOLDERS, ChainSource, is_alignment
from evofeed.featurize.structure_files import entry_of
from evofeed.featurize.structure_places import structures_by_entry

_PACKED: Final = ("", *PACKED)
STRUCTURE_DIRS: Final = (
    *("mmcif", "mmcifs", "pdb_mmcif/mmcif_files", "mmcif_files", "data", "structures", "pdb"),
)
_TEMPLATE_DIRS: Final = ("template_mmcif", "template_mmcifs", "templates")
_OURS: Final = ("jobs", "leases", "refs", "shards")
"""Folders of a dataset, of which the first is there as soon as a job has begun."""
FASTA_DIRS: Final = ("fasta", "fastas", "fasta_dir")
_CHAIN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=-]{0,199}$")
_COLABFOLD_SEARCH: Final = re.compile(r"(.+)_(?:env|all|nofilter|env-nofilter|pair[\w-]*)$")
"""ColabFold's own working folder of `<name>.a3m`, with that alignment's parts."""
_COMMON_NAMES: Final = ("a3m", "a3ms", "alignments", "msa", "msas")
"""Folders whose name names no chain; Boltz's and others' `msa/` has a file for each protein."""
_HEAD_BYTES: Final = 1 << 18
"""Of an a3m, with its query in it."""
_COLABFOLD_MODEL: Final = re.compile(r"_(?:un)?relaxed_rank_0*1_")


@dataclass(frozen=True, slots=True)
class SideFiles:
    """What is beside the alignments of a data set.

    Attributes:
        structures: file by entry or chain.
        structure_db: span in a db by chain (distillation).
        fastas: file by chain.
        template_mmcif_dir, release_dates, obsolete_pdbs: as in `ChainSource`.
        is_distillation: the structures are predictions.
        faults: chain ids that are none, and the like.
    """

    structures: Mapping[str, str]
    structure_db: Mapping[str, DbEntry]
    fastas: Mapping[str, str]
    template_mmcif_dir: str | None
    release_dates: str | None
    obsolete_pdbs: str | None
    is_distillation: bool
    faults: list[InputError]

    @classmethod
    def find(
        cls,
        root: Path,
        *,
        structure_dir: str | None,
        template_mmcif_dir: str | None,
        fasta_dir: str | None,
        structure_index: str | None,
        release_dates: str | None,
        obsolete_pdbs: str | None,
        is_distillation: bool,
        faults: list[InputError],
    ) -> SideFiles:
        """Look into the folders given, or into those of usual names."""
        structures = folders(structure_dir, root, STRUCTURE_DIRS)
        templates = folders(template_mmcif_dir, root, _TEMPLATE_DIRS) or structures
        return cls(
            structures=structures_by_entry(structures, deep=structure_dir is not None),
            structure_db=read_index(structure_index) if structure_index else {},
            fastas=_index(folders(fasta_dir, root, FASTA_DIRS), (".fasta", ".fa", ".faa")),
            template_mmcif_dir=str(templates[0]) if templates else None,
            release_dates=release_dates,
            obsolete_pdbs=obsolete_pdbs,
            is_distillation=is_distillation,
            faults=faults,
        )

    def source(self, chain_id: str, where: str, **more: Any) -> ChainSource | None:
        """A chain with its structure or FASTA and `more`; None, and a fault, for a bad id."""
        if not _CHAIN_ID.match(chain_id):
            self.faults.append(
                InputError(
                    f"{chain_id!r} is no chain id: letters, digits and _ . + = - only, at most 200",
                    path=where,
                )
            )
            return None
        entry = self.structure_db.get(chain_id)
        span = entry.files[0] if entry and entry.files else None
        known: dict[str, Any] = {
            "structure": span.path if span else _named(chain_id, self.structures),
            "structure_span": (span.offset, span.size or 0) if span else None,
            "structure_name": span.name if span else "",
            "fasta": self.fastas.get(chain_id),
            "template_mmcif_dir": self.template_mmcif_dir,
            "release_dates": self.release_dates,
            "obsolete_pdbs": self.obsolete_pdbs,
            "is_distillation": self.is_distillation,
        }
        return ChainSource(chain_id, **(known | more))

    def copy_of(self, original: ChainSource, chain_id: str) -> ChainSource:
        """A chain with another's alignments and a structure of its own."""
        fresh = self.source(chain_id, original.chain_id) or original
        return dataclasses.replace(
            fresh,
            alignment_dir=original.alignment_dir,
            alignments=original.alignments,
            sequence="" if fresh.structure else original.sequence,
            fasta=fresh.fasta or (None if fresh.structure else original.fasta),
        )


def refuse_one_chain(root: Path) -> None:
    """Raise for a chain's own folder: its alignments are not chains.

    Raises:
        InputError: it is one; names the folder to give instead.
    """
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        name = file_ref(entry.name).plain_name
        own = name.endswith((".sto", ".hhr")) or (
            name.endswith(".a3m") and root.absolute().parent.name == "alignments"
        )
        if entry.is_dir():
            own = (
                entry.name in SUBFOLDERS
                and any(map(_holds_alignments, list(os.scandir(entry.path))))
                and not several_proteins(Path(entry.path))
            )
        if own:
            raise InputError(
                f"this is one chain's own folder, it has {entry.name}: give the folder of all "
                f"chains, {root.absolute().parent}",
                path=str(root),
            )


def from_chain_folders(root: Path, beside: SideFiles, *, every: bool = False) -> list[ChainSource]:
    """Chain folders, flattened or as OpenProteinSet ships them.

    Args:
        root: the folder they are in.
        beside: structures and the like.
        every: take folders without alignments too; else they are something else.
    """
    sources = []
    for entry in os.scandir(root):
        if not entry.is_dir() or entry.name.startswith("."):
            continue
        try:
            inner = list(os.scandir(entry.path))
        except OSError as error:  # one that is not ours to read hides no other
            why = f"folder cannot be listed: {error.strerror}"
            beside.faults.append(InputError(why, path=entry.path))
            continue
        if any(item.name == "msas" for item in inner) and chain_folders(Path(entry.path)):
            sources += from_target(Path(entry.path), beside)
            continue
        if not every and not any(_holds_alignments(item) for item in inner):
            continue
        if entry.name in _COMMON_NAMES and several_proteins(Path(entry.path)):
            sources += from_a3m_files(a3m_files(Path(entry.path)), beside)
            continue
        search = _COLABFOLD_SEARCH.match(entry.name)
        if search and (root / f"{search[1]}.a3m").is_file():
            continue
        source = beside.source(entry.name, entry.path)
        if source is not None:
            structure = source.structure or _inner_structure(inner)
            sources.append(
                dataclasses.replace(source, alignment_dir=entry.path, structure=structure)
            )
    return sources


def a3m_files(folder: Path) -> list[Path]:
    """The a3m files of a folder, in order of name."""
    return sorted(p for p in folder.iterdir() if plain(p.name).endswith(".a3m") and p.is_file())


def several_proteins(folder: Path) -> bool:
    """Whether the a3m files of a folder are those of several proteins: their queries differ."""
    queries = set()
    for path in a3m_files(folder):
        with contextlib.suppress(InputError):  # said when it is read
            queries.add(query_of(read_head(file_ref(path), _HEAD_BYTES), "a3m"))
        if len(queries) > 1:
            return True
    return False


def _holds_alignments(item: os.DirEntry[str]) -> bool:
    return item.name in SUBFOLDERS if item.is_dir() else is_alignment(item.name)


def _inner_structure(inner: Iterable[os.DirEntry[str]]) -> str | None:
    """The structure in OpenProteinSet's `cif/` or `pdb/` below a chain's folder."""
    below = [Path(item.path) for item in inner if item.is_dir() and item.name in ("cif", "pdb")]
    found = structures_by_entry(sorted(below))
    return found[min(found)] if found else None


def from_db(index: Mapping[str, DbEntry], beside: SideFiles) -> list[ChainSource]:
    """The chains of an alignment_db."""
    sources = []
    for chain_id, entry in index.items():
        own = {"sequence": entry.sequence, "description": entry.description}
        more = {name: value for name, value in own.items() if value}
        source = beside.source(chain_id, entry.db, alignments=entry.files, **more)
        if source is not None:
            sources.append(source)
    return sources


def from_a3m_files(paths: Iterable[Path], beside: SideFiles) -> list[ChainSource]:
    """ColabFold results: `<name>.a3m`, the best model beside it as its structure.

    Also the same as tables: Boltz's `.csv`, Chai's `.aligned.pqt`.
    """
    sources = []
    for path in paths:
        name = stem(path)
        assembly = assembly_in(path)
        if assembly is not None and sum(assembly.copies) > 1:
            model = _colabfold_model(path.parent, name)
            sources += from_complex(path, assembly, model, beside)
            continue
        source = beside.source(name, str(path))
        if source is not None:
            model = source.structure or _colabfold_model(path.parent, name)
            sources.append(
                dataclasses.replace(
                    source,
                    alignments=(alignment_file(path) or file_ref(path),),
                    structure=model,
                    is_distillation=source.is_distillation or model is not None,
                )
            )
    return sources


def _colabfold_model(folder: Path, name: str) -> str | None:
    models = [p for p in sorted(folder.glob(f"{name}*.pdb")) if _COLABFOLD_MODEL.search(p.name)]
    relaxed = [p for p in models if "unrelaxed" not in p.name]
    best = relaxed or models
    return str(best[0]) if best else None


def from_fasta(path: Path, beside: SideFiles) -> list[ChainSource]:
    """Sequences of a FASTA file; alignments are `<name>/` or `<name>.a3m` beside it.

    Headers may be Boltz's or Chai's, which say what kind of molecule each is and where its
    alignment is; what is no protein is noted with the proteins.
    """
    faults: list[InputError] = []
    records = parse_fasta(read_bytes(file_ref(path)), path=str(path), faults=faults)
    molecules = [molecule_of(fault.item or "") for fault in faults]
    beside.faults.extend(f for f, e in zip(faults, molecules, strict=True) if not is_other(e))
    others = [m for m in molecules if m is not None and is_other(m)]
    sources = []
    for record in records:
        molecule = molecule_of(record.description)
        if molecule is not None and is_other(molecule):
            others.append(molecule)
            continue
        source = beside.source(_fasta_id(record.name, molecule, path), str(path))
        if source is not None:
            sources.append(
                dataclasses.replace(
                    source,
                    sequence=record.sequence,
                    description=record.description,
                    **_alignments_of(record.sequence, source.chain_id, molecule, path),
                )
            )
    if others and not sources:
        beside.faults.append(InputError(no_protein(others), path=str(path)))
    notes = (no_protein(others),) if others else ()
    return [dataclasses.replace(source, notes=notes) for source in sources]


def _fasta_id(name: str, molecule: Molecule | None, path: Path) -> str:
    """Chain id of a FASTA header's first word; of `sp|P61626|LYSC_HUMAN` the accession."""
    if molecule is not None:
        entry = plain(path.name).rpartition(".")[0]
        return f"{entry}_{molecule.name}" if molecule.chain else molecule.name
    parts = name.split("|")
    return (parts[1] if len(parts) > 1 and parts[1] else name).partition("/")[0]


def _alignments_of(
    sequence: str, chain_id: str, molecule: Molecule | None, fasta: Path
) -> dict[str, Any]:
    """Where the alignments of a sequence lie: as its header says, or by name beside its file."""
    if molecule is not None and molecule.msa:
        return {"alignments": (alignment_named(molecule.msa, fasta),)}
    folder = first_dir(fasta.parent, (chain_id, f"alignments/{chain_id}"))
    if folder:
        return {"alignment_dir": str(folder)}
    names = [f"{chain_id}.a3m{packed}" for packed in _PACKED]
    names += [f"{home}{chai_name(sequence)}" for home in ("", "msas/", "msa/")]
    beside_it = first_file(fasta.parent, names)
    ref = alignment_file(Path(beside_it)) if beside_it else None
    return {"alignments": (ref,) if ref else ()}


def from_structures(paths: Iterable[Path], beside: SideFiles) -> list[ChainSource]:
    """Every protein chain of structure files; the files are parsed to know them."""
    sources = []
    files = list(paths)
    for path, listed in zip(files, list_chains(files), strict=True):
        if isinstance(listed, InputError):
            beside.faults.append(listed)
            continue
        entry = entry_of(plain(path.name))
        for chain in listed:
            source = beside.source(f"{entry}_{chain}" if chain else entry, str(path))
            if source is not None:
                sources.append(
                    dataclasses.replace(source, structure=str(path), structure_chain=chain)
                )
    return sources


def first_dir(root: Path, names: Iterable[str]) -> Path | None:
    """The first of the folders that is there."""
    return next((root / name for name in names if (root / name).is_dir()), None)


def first_file(root: Path, names: Iterable[str]) -> str | None:
    """The first of the files that is there."""
    return next((str(root / name) for name in names if (root / name).is_file()), None)


def folders(given: str | None, root: Path, names: Iterable[str]) -> list[Path]:
    """The folder given, or those of the names that are there and no dataset.

    Raises:
        InputError: the folder given is not there.
    """
    if given is not None:
        if not Path(given).is_dir():
            raise InputError("no such folder", path=given)
        return [Path(given)]
    return [root / name for name in names if (root / name).is_dir() and not _made(root / name)]


def _made(folder: Path) -> bool:
    """Whether it is a dataset of ours: `data/` may lie beside its input, and hold structures."""
    return any((folder / name).is_dir() for name in _OURS)


def _index(places: Iterable[Path], suffixes: Iterable[str]) -> dict[str, str]:
    """Stem -> file with one of the suffixes, the first kind winning, then the first folder."""
    found: dict[str, tuple[int, str]] = {}
    kinds = [suffix + packed for suffix in suffixes for packed in _PACKED]
    for folder in places:
        for entry in os.scandir(folder):
            for rank, kind in enumerate(kinds):
                if entry.name.endswith(kind):
                    stem = entry.name[: -len(kind)]
                    if stem not in found or rank < found[stem][0]:
                        found[stem] = (rank, entry.path)
                    break
    return {stem: path for stem, (_, path) in found.items()}


def _named(chain_id: str, structures: Mapping[str, str]) -> str | None:
    entry = chain_id.rpartition("_")[0]
    names = (entry, entry.lower(), chain_id)
    return next((structures[name] for name in names if name and name in structures), None)
