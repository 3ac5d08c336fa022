"""Protenix's alignments: `mmcif_msa_template/<n>/`, and the index of their sequences."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from evofeed.base.errors import InputError
from evofeed.featurize.formats.reading import file_ref, read_bytes
from evofeed.featurize.inputs.side_files import SideFiles
from evofeed.featurize.inputs.sources import ChainSource

FOLDERS: Final = ("mmcif_msa_template", "mmcif_msa", "msa", "msas")
_INDEX: Final = "seq_to_pdb_index.json"


def with_sequences(
    root: Path, sources: Sequence[ChainSource], beside: SideFiles
) -> list[ChainSource]:
    """The chains with the sequences that the index gives for their numbers, if there is one.

    Args:
        root: the folder above the alignments.
        sources: chains named by number.
        beside: structures and the like.
    """
    homes = (root, root / "common", root.parent, root.parent / "common")
    index = next((home / _INDEX for home in homes if (home / _INDEX).is_file()), None)
    if index is None:
        return [*sources]
    try:
        numbers = json.loads(read_bytes(file_ref(index)))
        sequence_of = {str(number): sequence for sequence, number in numbers.items()}
    except (ValueError, AttributeError, RecursionError) as error:
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
