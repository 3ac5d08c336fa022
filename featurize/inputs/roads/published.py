"""Published training sets of Boltz, OpenFold3 and Protenix, as they lie on disk when unpacked.

    manifest.json  structures/<entry>.npz                    Boltz; alignments in `…_msa/<id>.npz`
    <cache>.json   <structures>/<entry>/<entry>.npz          OpenFold3; `<arrays>/<chain>.npz`
    indices/*.csv  mmcif_bioassembly/<entry>.pkl.gz          Protenix; `mmcif_msa…/<number>/*.a3m`

Each protein chain that the set's own list names becomes a chain. Dates, resolutions and
methods are in the list, not in the files, so they come from there.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from evofeed.base.errors import InputError, MsaError
from evofeed.featurize.formats.packed_arrays import Npz, npz_names, unpickle
from evofeed.featurize.formats.reading import FileRef, file_ref, plain, read_bytes, read_head
from evofeed.featurize.inputs.side_files import SideFiles, first_dir
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.protein.chain_files import with_insertions

NUMBERED: Final = ("mmcif_msa_template", "mmcif_msa", "msa", "msas")
"""Folders of Protenix's alignments, a folder in them for each number."""
_HEAD: Final = 1 << 16
_BOLTZ_LETTERS: Final = np.frombuffer(b"X-ARNDCQEGHILKMFPSTWYVX", np.uint8)
"""Letter of each of Boltz's tokens: padding, gap, the twenty, unknown; others are no protein."""
_NO_CLUSTER: Final = (-1, "-1", "", None)


def published_set(root: Path, beside: SideFiles) -> list[ChainSource]:
    """The chains of a published set in a folder; none if there is no such set."""
    for road in (_boltz, _openfold3, _openfold3_queries, _protenix):
        try:
            sources = [source for source in road(root, beside) if source is not None]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"its list of chains is not as {road.__name__[1:]} writes it: {error!r}"
            raise InputError(why[:300], path=str(root)) from None
        if sources:
            return sources
    return []


def rows_of(data: bytes, argument: str, path: str, most: int | None = None) -> bytes:
    """An alignment of arrays as a3m.

    Args:
        argument: `boltz`, or `openfold3` and which of the alignments in it.
        most: rows that are read, all if None.

    Raises:
        MsaError: the arrays are not what they should be.
    """
    kind, _, name = argument.partition(" ")
    try:
        tables = Npz(data, path)
        return _boltz_rows(tables, most) if kind == "boltz" else _openfold3_rows(tables[name], most)
    except InputError as error:
        raise MsaError(error.message, path=path) from None
    except (KeyError, IndexError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise MsaError(f"no alignment as {kind} keeps it: {error!r}"[:300], path=path) from None


def _boltz_rows(tables: Mapping[str, Any], most: int | None) -> bytes:
    codes, deletions, rows = tables["residues"], tables["deletions"], tables["sequences"][:most]
    codes = codes["res_type"][: rows["res_end"].max(initial=0)]
    letters = _BOLTZ_LETTERS[np.minimum(codes.astype(np.int64), 22)]
    lines = []
    for number, row in enumerate(rows):
        gone = deletions[row["del_start"] : row["del_end"]]
        taxon = int(row["taxonomy"])
        name = f"row{number} TaxID={taxon}" if taxon >= 0 else f"row{number}"
        own = letters[row["res_start"] : row["res_end"]]
        lines.append(_a3m_row(name, own, gone["res_idx"], gone["deletion"]))
    return b"".join(lines)


def _openfold3_rows(table: Mapping[str, Any], most: int | None) -> bytes:
    msa, deletions = np.asarray(table["msa"]), np.asarray(table["deletion_matrix"])
    if msa.dtype.kind != "U" or msa.ndim != 2 or deletions.shape != msa.shape:
        raise ValueError(f"msa {msa.dtype}{list(msa.shape)}, deletions {list(deletions.shape)}")
    codes = np.ascontiguousarray(msa.astype("<U1")).view(np.uint32).reshape(msa.shape)
    codes = np.where((codes >= ord("a")) & (codes <= ord("z")), codes - 32, codes)[:most]
    names = [str(name) for name in np.asarray(table["metadata"]).reshape(-1).tolist()]
    if len(names) != len(msa):
        names = [f"row{number}" for number in range(len(msa))]
    lines = []
    for name, row, gone in zip(names, codes.astype(np.uint8), deletions, strict=False):
        at = np.flatnonzero(gone)
        lines.append(_a3m_row(" ".join(name.split()), row, at, gone[at]))
    return b"".join(lines)


def _a3m_row(name: str, letters: np.ndarray, at: np.ndarray, counts: np.ndarray) -> bytes:
    """A row of a3m with residues inserted before some columns."""
    inserted = zip(at.tolist(), counts.tolist(), strict=True)
    text = with_insertions(letters.tobytes(), inserted)
    return b">%s\n%s\n" % (name.encode("utf-8", "replace"), text)


# Boltz


def _boltz(root: Path, beside: SideFiles) -> Iterator[ChainSource | None]:
    targets = _boltz_targets(root)
    if targets is None:
        return
    alignments = _boltz_alignments(root, targets)
    found = _read_json(targets / "manifest.json")
    records = found.get("records", []) if isinstance(found, dict) else found
    for record in records:
        entry = str(record["id"])
        known = record.get("structure") or {}
        for chain in record["chains"]:
            if chain["mol_type"] != 0:
                continue
            refs: tuple[FileRef, ...] = ()
            name, notes = str(chain["chain_name"]), []
            if not chain.get("valid", True):
                notes.append("Boltz's own filters call this chain invalid")
            if chain["msa_id"] not in (-1, "", "-1") and alignments is not None:
                file = alignments / f"{chain['msa_id']}.npz"
                refs = (FileRef("boltz.a3m", str(file), part="published boltz"),)
            yield beside.source(
                f"{entry}_{name}",
                str(targets / "manifest.json"),
                structure=str(targets / "structures" / f"{entry}.npz"),
                structure_chain=name,
                alignments=refs,
                notes=tuple(notes),
                **_facts(known.get("released"), known.get("resolution"), known.get("method")),
            )


def _boltz_targets(root: Path) -> Path | None:
    homes = [root, *sorted(path for path in root.iterdir() if path.name.endswith("targets"))]
    named = (home for home in homes if (home / "manifest.json").is_file())
    return next((home for home in named if first_dir(home, ("structures",))), None)


def _boltz_alignments(root: Path, targets: Path) -> Path | None:
    name = targets.absolute().name
    beside = [name.replace("targets", "msa")] if "targets" in name else []
    inside = first_dir(targets, ("msa", "msas")) or first_dir(root, ("msa", "msas"))
    return inside or first_dir(targets.absolute().parent, beside)


def boltz_clusters(found: Any) -> list[list[str]] | None:
    """The clusters that a manifest of Boltz names, by chain; None if it is no manifest.

    Raises:
        InputError: every chain has the cluster -1, which makes sampling weights meaningless.
    """
    records = found.get("records") if isinstance(found, dict) else found
    if not isinstance(records, list) or not records or "chains" not in records[0]:
        return None
    groups: dict[str, list[str]] = {}
    for record in records:
        for chain in record["chains"]:
            if chain["mol_type"] == 0 and chain["cluster_id"] not in _NO_CLUSTER:
                name = f"{record['id']}_{chain['chain_name']}"
                groups.setdefault(str(chain["cluster_id"]), []).append(name)
    if not groups:
        raise InputError(
            "the cluster of every chain is -1: its maker's clusters did not match its chains, "
            "and weights by cluster would be wrong; `evofeed cluster` makes them again"
        )
    return list(groups.values())


# OpenFold3


def _openfold3(root: Path, beside: SideFiles) -> Iterator[ChainSource | None]:
    caches = openfold3_caches(root)
    if not caches:
        return
    cache = caches[0]
    structures = entry_files(root)
    arrays = array_files(root, set(structures.values()))
    for entry, known in _read_json(cache)["structure_data"].items():
        chains = {
            name: chain
            for name, chain in (known.get("chains") or {}).items()
            if chain.get("molecule_type", "PROTEIN") in ("PROTEIN", 0)
        }
        authors = Counter(str(chain.get("auth_asym_id")) for chain in chains.values())
        for name, chain in chains.items():
            author = str(chain.get("auth_asym_id") or name)
            own = author if authors[author] <= 1 else f"{author}-{name}"
            file = arrays.get(str(chain.get("alignment_representative_id")))
            yield beside.source(
                entry if "auth_asym_id" not in chain and len(chains) == 1 else f"{entry}_{own}",
                str(cache),
                structure=str(structures[entry]) if entry in structures else None,
                structure_chain=str(name),
                alignments=_openfold3_alignments(file, beside) if file else (),
                is_distillation=beside.is_distillation or "release_date" not in known,
                notes=() if file else ("the set has no alignment for it",),
                **_facts(
                    known.get("release_date"),
                    known.get("resolution"),
                    known.get("experimental_method"),
                ),
            )


def openfold3_caches(root: Path) -> list[Path]:
    """Lists of entries that OpenFold3 wrote, those with clusters first."""
    found = [p for p in sorted(root.glob("*.json")) if b'"structure_data"' in _head(p)]
    return sorted(found, key=lambda path: b'"cluster_id"' not in _head(path))


def _openfold3_queries(root: Path, beside: SideFiles) -> Iterator[ChainSource | None]:
    """Chains of a `query.json` whose alignments are arrays."""
    path = root / "query.json"
    if not path.is_file() or b'"queries"' not in _head(path):
        return
    for name, query in _read_json(path)["queries"].items():
        proteins = [c for c in query["chains"] if c["molecule_type"] == "protein"]
        for chain in proteins:
            given, ids = chain.get("main_msa_file_paths") or [], chain["chain_ids"]
            files = [Path(file) for file in ([given] if isinstance(given, str) else given)]
            first = ids if isinstance(ids, str) else ids[0]
            own = name if len(proteins) == 1 else f"{name}_{first}"
            there = [_openfold3_alignments(_there(root, file), beside) for file in files]
            yield beside.source(
                own,
                str(path),
                sequence=chain["sequence"],
                description=own,
                alignments=tuple(itertools.chain(*there)),
            )


def _there(root: Path, file: Path) -> Path:
    """A file where it was, or where it is after its folder was moved."""
    return file if file.is_file() else root / file.parent.name / file.name


def entry_files(root: Path) -> dict[str, Path]:
    """`<folder>/<entry>/<entry>.npz` or `<entry>/structure.npz`, by entry."""
    files = [*root.glob("*/*/*.npz"), *root.glob("*/*.npz")]
    return {
        path.parent.name: path for path in files if path.stem in (path.parent.name, "structure")
    }


def array_files(root: Path, taken: set[Path]) -> dict[str, Path]:
    """`<folder>/<chain>.npz` or `<folder>/<chain>/alignment.npz`, by chain."""
    found = {p.stem: p for p in root.glob("*/*.npz") if p not in taken}
    return found | {p.parent.name: p for p in root.glob("*/*/alignment.npz")}


def _openfold3_alignments(file: Path, beside: SideFiles) -> tuple[FileRef, ...]:
    """The alignments in an archive; a fault, and one that fails later, if it is none."""
    try:
        names = npz_names(file)
    except InputError as error:
        beside.faults.append(error)
        names = ["damaged"]
    return tuple(
        FileRef(f"{name}.a3m", str(file), part=f"published openfold3 {name}") for name in names
    )


# Protenix


def _protenix(root: Path, beside: SideFiles) -> Iterator[ChainSource | None]:
    entries, lists = protenix_lists(root)
    if entries is None or not lists:
        return
    numbers = _numbers(root)
    folder = next((p for p in sorted(root.glob("mmcif_msa*")) if p.is_dir()), None)
    seen: set[str] = set()
    for table in lists:
        for row in csv.DictReader(io.StringIO(read_bytes(file_ref(table)).decode())):
            name = f"{row['pdb_id']}_{row['chain_1_id']}"
            is_protein = row["type"] == "chain" and row["mol_1_type"] in ("protein", "prot")
            if not is_protein or name in seen:
                continue
            seen.add(name)
            file = entries / f"{row['pdb_id']}.pkl.gz"
            refs, notes = _protenix_alignments(file, row["entity_1_id"], numbers, folder)
            yield beside.source(
                name,
                str(table),
                structure=str(file),
                structure_chain=row["chain_1_id"],
                alignments=refs,
                notes=notes,
                **_facts(row.get("release_date"), row.get("resolution"), None),
            )


def protenix_lists(root: Path) -> tuple[Path | None, list[Path]]:
    """Folder of Protenix's entries, and the lists of their chains."""
    entries = next((p for p in sorted(root.glob("*bioassembly*")) if p.is_dir()), None)
    return entries, sorted([*root.glob("indices/*.csv*"), *root.glob("*indices*.csv*")])


def _numbers(root: Path) -> Mapping[tuple[str, str], str] | Mapping[str, str]:
    """Number of the alignments of each `(entry, entity)`, or of each sequence."""
    index = _index(root / "common", root, root / "pdb_seqs")
    if index is None:
        return {}
    by_sequence = {seq: str(number) for seq, number in _read_json(index).items()}
    entities = index.with_name("seq_to_pdb_id_entity_id.json")
    if not entities.is_file():
        return by_sequence
    return {
        (entry, str(entity)): by_sequence[sequence]
        for sequence, members in _read_json(entities).items()
        for entry, entity in members
        if sequence in by_sequence
    }


def _index(*homes: Path) -> Path | None:
    paths = (home / "seq_to_pdb_index.json" for home in homes)
    return next((path for path in paths if path.is_file()), None)


def with_sequences(
    root: Path, sources: Sequence[ChainSource], beside: SideFiles
) -> list[ChainSource]:
    """Chains named by Protenix's numbers with the sequences that its index gives them.

    Args:
        root: the folder above the alignments; without an index there, chains stay as they are.
    """
    index = _index(root, root / "common", root.parent, root.parent / "common")
    if index is None:
        return [*sources]
    try:
        sequence_of = {str(number): sequence for sequence, number in _read_json(index).items()}
    except AttributeError as error:
        raise InputError(f"not Protenix's index of sequences: {error!r}", path=str(index)) from None
    found = []
    for source in sources:
        sequence = sequence_of.get(source.chain_id)
        if sequence is None:
            why = f"no sequence of this number in {index.name}"
            beside.faults.append(InputError(why, path=str(index), item=source.chain_id))
        else:
            found.append(dataclasses.replace(source, sequence=sequence))
    return found


def _protenix_alignments(
    file: Path, entity: str, numbers: Mapping[Any, str], folder: Path | None
) -> tuple[tuple[FileRef, ...], tuple[str, ...]]:
    key: Any = (plain(file.name).removesuffix(".pkl"), entity)
    if key not in numbers and numbers and isinstance(next(iter(numbers)), str):
        try:  # no list of entities: the entry itself has the sequence
            key = unpickle(read_bytes(file_ref(file)), str(file))["sequences"].get(entity)
        except (InputError, KeyError, TypeError, AttributeError):
            key = None  # said when the chain is made
    if folder is None or key not in numbers:
        return (), ("the set has no alignment for it",)
    found = sorted((folder / numbers[key]).glob("*.a3m*"))
    return tuple(file_ref(path) for path in found if "hmmsearch" not in path.name), ()


def _facts(released: Any, resolution: Any, method: Any) -> dict[str, Any]:
    try:
        value = max(float(resolution or 0.0), 0.0)
    except ValueError:
        value = 0.0
    return {
        "release_date": str(released or "")[:10],
        "resolution": value,
        "method": str(method or "").lower(),
    }


def _head(path: Path) -> bytes:
    return read_head(file_ref(path), _HEAD)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(read_bytes(file_ref(path)))
    except (ValueError, RecursionError) as error:
        raise InputError(f"no JSON: {error}", path=str(path)) from None
