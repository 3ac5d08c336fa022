"""ColabFold's a3m of a complex as sources of its different chains."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from evofeed.base.errors import InputError
from evofeed.featurize.formats.colabfold_a3m import Assembly
from evofeed.featurize.formats.reading import FileRef, file_ref, plain, read_bytes
from evofeed.featurize.inputs.side_files import SideFiles
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.featurize.structures.structure_files import parse_structure


def from_complex(
    path: Path, assembly: Assembly, model: str | None, beside: SideFiles
) -> list[ChainSource]:
    """The different chains of a complex, `<name>_A` and so on; a homomer's only one is `<name>`.

    Args:
        path: the a3m.
        assembly: what its first line says.
        model: PDB file of the predicted complex, if there is one.
        beside: structures and the like.
    """
    name = plain(path.name).removesuffix(".a3m")
    lone = len(assembly.lengths) == 1
    inside = _chains_of_model(model) if model else []
    sources = []
    for number, (letter, first) in enumerate(zip(assembly.letters, assembly.firsts, strict=True)):
        part = FileRef(plain(path.name), str(path), part=f"complex {number}")
        source = beside.source(
            name if lone else f"{name}_{letter}",
            str(path),
            alignments=(part,),
            notes=(f"one chain of a complex ({assembly}): how its rows pair is not kept",),
        )
        if source is not None and source.structure is None and model is not None:
            source = dataclasses.replace(
                source,
                structure=model,
                structure_chain=inside[first] if first < len(inside) else letter,
                is_distillation=True,
            )
        sources += [source] if source is not None else []
    return sources


def _chains_of_model(model: str) -> list[str]:
    ref = file_ref(model)
    try:
        return list(parse_structure(read_bytes(ref), ref.plain_name, path=model).sequences)
    except InputError:
        return []  # said again, with the reason, for each chain that needs it
