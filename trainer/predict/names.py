"""Chains that a FASTA file names, checked against the dataset's."""

from __future__ import annotations

from pathlib import Path

from evofeed.base.errors import InputError
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_record import ChainRecord


def fasta_names(path: Path) -> dict[str, str]:
    """Sequence by name, the word behind each `>`.

    Raises:
        InputError: a name is empty or comes twice, or there is none.
    """
    found: dict[str, str] = {}
    name = ""
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        text = line.strip()
        if text.startswith(">"):
            name = (text[1:].split() or [""])[0]
            if not name or name in found:
                raise InputError(
                    f"{'a name twice: ' + name if name else 'a record without a name'}; "
                    "every record needs a name of its own",
                    path=str(path), line=number,
                )  # fmt: skip
            found[name] = ""
        elif text and not name:
            raise InputError(
                "a FASTA file begins with a line like >name", path=str(path), line=number
            )
        else:
            found[name] = found.get(name, "") + text.upper()
    if not found:
        raise InputError("there is no sequence in it", path=str(path))
    return found


def check_sequences(
    record: ChainRecord | AssemblyRecord, sequence: str | None, path: Path | None
) -> None:
    """Refuse a chain whose sequence in the FASTA file is another than the dataset's.

    Raises:
        InputError: it is.
    """
    if not sequence or isinstance(record, AssemblyRecord) or sequence == record.sequence:
        return
    raise InputError(
        f"{record.chain_id} has {len(sequence)} residues here, and another sequence of "
        f"{record.num_res} in the dataset: featurize this file, or rename the record",
        path=str(path), item=record.chain_id,
    )  # fmt: skip
