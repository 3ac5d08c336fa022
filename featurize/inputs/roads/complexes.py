"""Job files of structure predictors: AlphaFold 3 and Protenix JSON, Boltz YAML; and FASTA headers.

All of them list the molecules of a complex under `sequences`. Each protein in them is a
chain, `<name>_<id>`, with the alignments that are written in the file or named by it; what
else is there (ligands, nucleic acids, copies, templates) is noted. A job is one complex, too.
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
from evofeed.featurize.inputs.roads.tables import alignment_named
from evofeed.featurize.inputs.side_files import SideFiles, first_file
from evofeed.featurize.inputs.sources import ChainSource

LEFT_OUT: Final = "no protein, left out"
"""How the note on what is beside the proteins begins."""
_BOLTZ: Final = ("protein", "rna", "dna", "ccd", "smiles")
_CHAI: Final = ("protein", "rna", "dna", "ligand", "glycan")
SUFFIXES: Final = (".json", ".yaml", ".yml")
_HEAD_BYTES: Final = 1 << 16
_MOST_COPIES: Final = 100_000
"""Copies of a molecule whose ids are written out."""
_NAMED_COPIES: Final = 20
_PAIRED: Final = "uniprot_hits.a3m"
"""What an alignment to pair is called here: AlphaFold 3 pairs its rows by UniProt's species."""
_OF_MOLECULE: Final = ("templates", "templatesPath", "modifications", "cyclic")
"""Items of a protein that are not read."""
_OF_JOB: Final = ("templates", "constraints", "bondedAtomPairs", "covalent_bonds", "userCCD",
                  "userCCDPath", "properties")  # fmt: skip
"""Items of a job that are not read."""
_PROTEINS: Final = ("protein", "proteinChain")
_IS_JOB: Final = re.compile(rb"""(?m)^sequences:|["']sequences["']\s*:""")


class Molecule(NamedTuple):
    """What a header or a job file says: a name, a kind of molecule, and the file of its alignment.

    `chain` marks a name that is only a chain's, as in Boltz: its file is the entry.
    """

    name: str
    kind: str
    msa: str = ""
    chain: bool = False


def molecule_of(header: str) -> Molecule | None:
    """A molecule as Boltz (`A|protein|x.a3m`) or Chai (`protein|name=x`) write it; else None."""
    first, *rest = (part.strip() for part in header.split("|"))
    if rest and rest[0].lower() in _BOLTZ:
        msa = rest[1] if len(rest) > 1 else ""
        return Molecule(first, rest[0].lower(), "" if msa == "empty" else msa, chain=True)
    if rest and first.lower() in _CHAI:
        name, _, _ = rest[0].removeprefix("name=").strip().partition(" ")
        return Molecule(name, first.lower())
    return None


def is_other(molecule: Molecule | None) -> bool:
    """Whether it says that it is no protein."""
    return molecule is not None and molecule.kind != "protein"


def no_protein(others: Iterable[Molecule]) -> str:
    """A note on what is beside the proteins of an entry."""
    listed = ", ".join(f"{molecule.name} ({molecule.kind})" for molecule in others)
    return f"{LEFT_OUT}: {listed}"


def is_job(path: Path) -> bool:
    """Whether a JSON or YAML file lists molecules, by its first bytes."""
    return bool(_IS_JOB.search(read_head(file_ref(path), _HEAD_BYTES)))


def from_job(path: Path, beside: SideFiles) -> list[ChainSource]:
    """The proteins of a job file; faults for what cannot be understood in it.

    Beside AlphaFold 3's `x_data.json`, its best model `x_model.cif` is their structure.
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
            notes = [f"{name} of the job, not read" for name in _given(job, _OF_JOB)]
            sources += [
                dataclasses.replace(
                    source,
                    notes=(*source.notes, *notes),
                    **_modelled(source, model),
                )
                for source in _proteins(molecules, entry, number, path, beside)
            ]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            why = f"its 'sequences' are not as AlphaFold 3, Protenix or Boltz write them: {error!r}"
            beside.faults.append(InputError(why, path=str(path), item=entry))
    return sources


def _modelled(source: ChainSource, model: str | None) -> dict[str, Any]:
    """A model as the structure of a chain that has none."""
    if model is None or source.structure is not None:
        return {}
    return {"structure": model, "structure_chain": source.copies[0], "is_distillation": True}


def rows_of(data: bytes, argument: str, path: str) -> bytes:
    """The alignment written into a JSON file: `unpairedMsa` of one protein, or `pairedMsa`;
    `argument` numbers job and molecule from 0, and has the field.

    Raises:
        InputError: it is not there.
    """
    job, protein, name = argument.split()
    number, index = int(job), int(protein)
    try:
        jobs = parse_json(data)
        (molecule,) = (jobs if isinstance(jobs, list) else [jobs])[number]["sequences"][
            index
        ].values()
        return _text(molecule[name]).encode()
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise InputError(f"no alignment of molecule {index + 1}: {error!r}", path=path) from None


def _jobs(path: Path) -> list[dict[str, Any]]:
    data = read_bytes(file_ref(path))
    try:
        if plain(path.name).endswith(".json"):
            found = parse_json(data)
        else:
            import yaml

            found = yaml.safe_load(data)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # json has `msg` and `lineno`, yaml `problem` and its mark
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else getattr(error, "lineno", None)
        why = getattr(error, "msg", None) or getattr(error, "problem", None) or error
        why = " ".join(str(why).split())
        raise InputError(f"neither JSON nor YAML: {why}", path=str(path), line=line) from None
    jobs = found if isinstance(found, list) else [found]
    return [job for job in jobs if isinstance(job, dict) and "sequences" in job]


def _proteins(
    molecules: list[dict[str, Any]], entry: str, number: int, path: Path, beside: SideFiles
) -> Iterator[ChainSource]:
    taken = 0
    proteins, others = [], []
    for index, molecule in enumerate(molecules):
        ((kind, body),) = molecule.items()
        ids = _ids(body, taken)
        taken += len(ids)
        if kind in _PROTEINS:
            proteins.append((index, ids, body))
        else:
            others.append(Molecule(", ".join(ids), kind))
    if not proteins:
        why = no_protein(others) or "no protein in it"
        beside.faults.append(NoProtein(why, path=str(path), item=entry))
    for index, ids, body in proteins:
        chain_id = f"{entry}_{ids[0]}"
        refs, notes = _alignments(body, number, index, chain_id, path, beside)
        if len(ids) > 1:
            more = ", ..." if len(ids) > _NAMED_COPIES else ""
            first = ", ".join(ids[:_NAMED_COPIES])
            notes.append(f"{len(ids)} copies in the complex: {first}{more}")
        if others:
            notes.append(no_protein(others))
        found = beside.chain(
            chain_id,
            str(path),
            sequence=_text(body["sequence"]),
            description=chain_id,
            alignments=refs,
            notes=tuple(notes),
            assembly=str(path),
            copies=tuple(ids),
        )
        if not found:
            beside.faults[-1].item = entry
        yield from found


def _ids(body: Mapping[str, Any], taken: int) -> list[str]:
    """Chain ids of a molecule; where a file only counts copies, the letters that are next."""
    given = body.get("id")
    if isinstance(given, list) and not given:
        raise ValueError("an empty list of ids")
    if given is not None:
        return [_text(one) for one in (given if isinstance(given, list) else [given])]
    count = int(body.get("count", 1))
    if not 1 <= count <= _MOST_COPIES:
        raise ValueError(f"count {count}: must be 1 to {_MOST_COPIES}")
    return [chain_letter(taken + copy) for copy in range(count)]


def _alignments(
    body: Mapping[str, Any], number: int, index: int, chain_id: str, path: Path, beside: SideFiles
) -> tuple[tuple[FileRef, ...], list[str]]:
    """The alignments of a protein, and what else is there for it, in words."""
    notes = []
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
    notes += [f"{name} given with the sequence, not read" for name in _given(body, _OF_MOLECULE)]
    return tuple(refs), notes


def _given(values: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Which of some items a file gives, a list with its length."""
    found = [(name, values[name]) for name in names if values.get(name)]
    return [f"{len(v)} {n}" if isinstance(v, list) else n for n, v in found]


def _text(value: object) -> str:
    """A text, or a number that YAML took a chain id for.

    Raises:
        TypeError: it is neither; nothing nested is spelled out, for it may be huge.
    """
    if not isinstance(value, str | int):
        raise TypeError(f"a {type(value).__name__} where a text belongs")
    return str(value).encode().decode()  # a lone surrogate of JSON is none


def _stem(path: Path) -> str:
    return plain(path.name).rpartition(".")[0]
