"""Job files of structure predictors: AlphaFold 3 and Protenix JSON, Boltz YAML; and FASTA headers.

All of them list the molecules of a complex under `sequences`. Each protein is a chain,
`<name>_<id>`, with the alignments that the file contains or names; its notes list the rest
(ligands, nucleic acids, copies, templates). A job is also one complex.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from evofeed.base.errors import InputError, NoProtein
from evofeed.base.files import parse_json
from evofeed.featurize.formats.colabfold_a3m import chain_letter
from evofeed.featurize.formats.reading import (
    PACKED,
    FileRef,
    file_ref,
    plain,
    read_bytes,
    read_head,
)
from evofeed.featurize.inputs.readers.tables import alignment_named
from evofeed.featurize.inputs.side_files import SideFiles, first_file
from evofeed.featurize.inputs.sources import ChainSource

LEFT_OUT: Final = "no protein, left out"
"""First words of the note on the other molecules of an entry."""
_BOLTZ: Final = ("protein", "rna", "dna", "ccd", "smiles")
_CHAI: Final = ("protein", "rna", "dna", "ligand", "glycan")
SUFFIXES: Final = (".json", ".yaml", ".yml")
_HEAD_BYTES: Final = 1 << 16
_MAX_COPIES: Final = 100_000
"""Copies of a molecule: each gets an id."""
_LISTED_COPIES: Final = 20
_PAIRED: Final = "uniprot_hits.a3m"
"""Name given to an alignment to pair: AlphaFold 3 pairs its rows by UniProt's species."""
_UNREAD_OF_MOLECULE: Final = ("templates", "templatesPath", "modifications", "cyclic")
"""Items of a protein that are not read."""
_UNREAD_OF_JOB: Final = ("templates", "constraints", "bondedAtomPairs", "covalent_bonds",
                         "userCCD", "userCCDPath", "properties")  # fmt: skip
"""Items of a job that are not read."""
_PROTEINS: Final = ("protein", "proteinChain")
_IS_JOB: Final = re.compile(rb"""(?m)^sequences:|["']sequences["']\s*:""")


class Molecule(NamedTuple):
    """Name, kind and alignment file of a molecule in a header or a job file.

    `chain`: the name is a chain id, as in Boltz, and the name of the file is the entry's.
    """

    name: str
    kind: str
    msa: str = ""
    chain: bool = False


def molecule_of(header: str) -> Molecule | None:
    """The molecule of a header of Boltz (`A|protein|x.a3m`) or Chai (`protein|name=x`), or None."""
    first, *rest = (part.strip() for part in header.split("|"))
    if rest and rest[0].lower() in _BOLTZ:
        msa = rest[1] if len(rest) > 1 else ""
        return Molecule(first, rest[0].lower(), "" if msa == "empty" else msa, chain=True)
    if rest and first.lower() in _CHAI:
        name, _, _ = rest[0].removeprefix("name=").strip().partition(" ")
        return Molecule(name, first.lower())
    return None


def is_other(molecule: Molecule | None) -> bool:
    """True for a molecule that is not a protein."""
    return molecule is not None and molecule.kind != "protein"


def left_out_note(others: Iterable[Molecule]) -> str:
    """A note on the molecules of an entry that are not proteins."""
    listed = ", ".join(f"{molecule.name} ({molecule.kind})" for molecule in others)
    return f"{LEFT_OUT}: {listed}"


def is_job(path: Path) -> bool:
    """True if a JSON or YAML file lists molecules, by its first bytes."""
    return bool(_IS_JOB.search(read_head(file_ref(path), _HEAD_BYTES)))


def from_job(path: Path, side_files: SideFiles) -> list[ChainSource]:
    """The proteins of a job file; a job that cannot be read is a problem.

    With AlphaFold 3's `x_data.json`, its best model `x_model.cif` is their structure.
    """
    sources = []
    stem = _stem(path).removesuffix("_data")
    names = (f"{stem}_model.cif{packed}" for packed in ("", *PACKED))
    model = first_file(path.parent, names) if stem != _stem(path) else None
    for number, job in enumerate(_jobs(path)):
        name = job.get("name")
        entry = re.sub(r"[^\w.+=-]", "_", name if isinstance(name, str) and name else _stem(path))
        molecules = job.get("sequences")
        if not isinstance(molecules, list):
            raise InputError(f"'sequences' of {entry} is not a list", path=str(path))
        try:
            unread = [f"{item} of the job, not read" for item in _present(job, _UNREAD_OF_JOB)]
            for source in list(_proteins(molecules, entry, number, path, side_files)):
                fields: dict[str, Any] = {"notes": (*source.notes, *unread)}
                if model is not None and source.structure is None:
                    chain = source.copies[0]
                    fields |= {"structure": model, "structure_chain": chain}
                    fields["is_distillation"] = True
                sources.append(dataclasses.replace(source, **fields))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else repr(error)
            message = (
                f"its 'sequences' are not as AlphaFold 3, Protenix or Boltz write them: {reason}"
            )
            side_files.problems.append(InputError(message, path=str(path), item=entry))
    return sources


def rows_of(data: bytes, argument: str, path: str) -> bytes:
    """An alignment inside a JSON file; `argument` is the number of the job and of the molecule,
    from 0, and the field, `unpairedMsa` or `pairedMsa`.

    Raises:
        InputError: the file has no such alignment.
    """
    number, index, field = argument.split()
    try:
        jobs = parse_json(data)
        job = (jobs if isinstance(jobs, list) else [jobs])[int(number)]
        (molecule,) = job["sequences"][int(index)].values()
        return _text(molecule[field]).encode()
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        message = f"no alignment of molecule {int(index) + 1}: {error!r}"
        raise InputError(message, path=path) from None


def _jobs(path: Path) -> list[dict[str, Any]]:
    data = read_bytes(file_ref(path))
    try:
        if plain(path.name).endswith(".json"):
            content = parse_json(data)
        else:
            import yaml

            content = yaml.safe_load(data)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # json has `msg` and `lineno`, yaml `problem` and its mark
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else getattr(error, "lineno", None)
        reason = getattr(error, "msg", None) or getattr(error, "problem", None) or error
        message = f"neither JSON nor YAML: {' '.join(str(reason).split())}"
        raise InputError(message, path=str(path), line=line) from None
    jobs = content if isinstance(content, list) else [content]
    return [job for job in jobs if isinstance(job, dict) and "sequences" in job]


def _proteins(
    molecules: list[dict[str, Any]], entry: str, number: int, path: Path, side_files: SideFiles
) -> Iterator[ChainSource]:
    num_chains = 0
    proteins, others = [], []
    for index, molecule in enumerate(molecules):
        ((kind, body),) = molecule.items()
        ids = _chain_ids(body, num_chains)
        num_chains += len(ids)
        if kind in _PROTEINS:
            proteins.append((index, ids, body))
        else:
            others.append(Molecule(", ".join(ids), kind))
    if not proteins:
        message = left_out_note(others) if others else "no protein in it"
        side_files.problems.append(NoProtein(message, path=str(path), item=entry))
    for index, ids, body in proteins:
        chain_id = f"{entry}_{ids[0]}"
        refs, notes = _alignments(body, number, index, chain_id, path, side_files)
        if len(ids) > 1:
            more = ", ..." if len(ids) > _LISTED_COPIES else ""
            first = ", ".join(ids[:_LISTED_COPIES])
            notes.append(f"{len(ids)} copies in the complex: {first}{more}")
        if others:
            notes.append(left_out_note(others))
        chains = side_files.chain(
            chain_id,
            str(path),
            sequence=_text(body["sequence"]),
            description=chain_id,
            alignments=refs,
            notes=tuple(notes),
            assembly=str(path),
            copies=tuple(ids),
        )
        if not chains:
            side_files.problems[-1].item = entry
        yield from chains


def _chain_ids(body: Mapping[str, Any], first: int) -> list[str]:
    """Chain ids of a molecule's copies; if the file only counts them, letters from `first` on."""
    ids = body.get("id")
    if isinstance(ids, list) and not ids:
        raise ValueError("an empty list of ids")
    if ids is not None:
        return [_text(chain_id) for chain_id in (ids if isinstance(ids, list) else [ids])]
    count = int(body.get("count", 1))
    if not 1 <= count <= _MAX_COPIES:
        raise ValueError(f"count {count}: must be 1 to {_MAX_COPIES}")
    return [chain_letter(first + copy) for copy in range(count)]


def _alignments(
    body: Mapping[str, Any],
    number: int,
    index: int,
    chain_id: str,
    path: Path,
    side_files: SideFiles,
) -> tuple[tuple[FileRef, ...], list[str]]:
    """The alignments of a protein, and notes on its items that are not read."""
    refs: list[FileRef] = []
    if body.get("unpairedMsa"):
        name = f"{chain_id}_unpaired.a3m"
        refs.append(FileRef(name, str(path), part=f"job {number} {index} unpairedMsa"))
    if body.get("pairedMsa"):
        refs.append(FileRef(_PAIRED, str(path), part=f"job {number} {index} pairedMsa"))
    elif isinstance(paired := body.get("pairedMsaPath"), str) and paired:
        ref = alignment_named(paired, path)
        packed = ref.name.removeprefix(ref.plain_name)
        refs.append(ref._replace(name=f"{_PAIRED}{packed}"))
    named = [body.get("unpairedMsaPath"), body.get("msa")]
    folder = body["msa"].get("precomputed_msa_dir") if isinstance(body.get("msa"), dict) else None
    if folder:
        named = [f"{folder}/non_pairing.a3m"]
        pairing = alignment_named(f"{folder}/pairing.a3m", path)
        refs += [pairing] if pairing.nbytes() else []
    for name in (name for name in named if isinstance(name, str) and name not in ("", "empty")):
        refs.append(alignment_named(name, path))
    unread = _present(body, _UNREAD_OF_MOLECULE)
    return tuple(refs), [f"{item} given with the sequence, not read" for item in unread]


def _present(values: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Those of some items that a file has, a list with its length."""
    items = [(name, values[name]) for name in names if values.get(name)]
    return [f"{len(v)} {n}" if isinstance(v, list) else n for n, v in items]


def _text(value: object) -> str:
    """A text, or a chain id that YAML read as a number.

    Raises:
        TypeError: it is neither; the message leaves the value out, which may be huge.
    """
    if not isinstance(value, str | int):
        raise TypeError(f"a {type(value).__name__} where a text belongs")
    return str(value).encode().decode()  # raises for a lone surrogate of JSON


def _stem(path: Path) -> str:
    return plain(path.name).rpartition(".")[0]
