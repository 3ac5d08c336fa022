"""Damaged input is one typed error that names its file, its line and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.featurize.test_mmcif import small
from tests.featurize.test_pdb import line
from tests.featurize.test_roads import write
from tests.featurize.test_templates import HHR

from evofeed.base.errors import InputError, MmcifError, MsaError, TemplateError
from evofeed.featurize import ChainSource, discover, featurize_chain
from evofeed.featurize.formats.a3m import parse_a3m
from evofeed.featurize.formats.hits import parse_hhr
from evofeed.featurize.formats.stockholm import parse_stockholm
from evofeed.featurize.inputs.clusters import cluster_sizes
from evofeed.featurize.records.entry import entry_record
from evofeed.featurize.structures.components import read_components
from evofeed.featurize.structures.mmcif import parse_mmcif
from evofeed.featurize.structures.pdb import parse_pdb
from evofeed.featurize.structures.structure import Structure
from evofeed.synth.entries import COMPONENTS, entry_cif

ROWS = yaml.safe_load(Path(__file__).with_name("data").joinpath("refused.yaml").read_text())
CASES = [(kind, given, says) for kind, rows in ROWS.items() for given, says in rows]
SOUND = {
    "hhr": HHR.decode(),
    "mmcif": small([("A", "0.40", "1.000")]).decode(),
    "pdb": f"HEADER\n{line('CA', 'ALA', 'A', '1 ')}",
    "entry": entry_cif("s000", 0, 6),
    "components": COMPONENTS.read_text(),
    "index": '{"1abc_A": {"db": "a.db", "files": []}}',
}


def text(parse: Callable[..., Any]) -> Callable[[Path], object]:
    return lambda path: parse(path.read_bytes(), path=path.name)


def structure(parse: Callable[..., Structure]) -> Callable[[Path], object]:
    return lambda path: parse(path.read_bytes(), file_id="t", path=path.name).chain("A")


READERS: dict[str, tuple[type[InputError], Callable[[Path], object]]] = {
    "a3m": (MsaError, text(parse_a3m)),
    "stockholm": (MsaError, text(parse_stockholm)),
    "hhr": (TemplateError, text(parse_hhr)),
    "mmcif": (MmcifError, structure(parse_mmcif)),
    "pdb": (InputError, structure(parse_pdb)),
    "entry": (MmcifError, text(entry_record)),
    "components": (MmcifError, read_components),
    "clusters": (InputError, lambda path: cluster_sizes(str(path), [ChainSource("1abc_A")])),
}


def read_folder(folder: Path) -> None:
    problems: list[InputError] = []
    sources = discover(folder, problems=problems)
    for fault in problems:
        raise fault
    for source in sources:
        featurize_chain(source)


@pytest.mark.parametrize(("kind", "given", "says"), CASES)
def test_what_is_damaged_is_one_typed_error(
    kind: str, given: Any, says: str, tmp_path: Path
) -> None:
    if isinstance(given, list):
        assert given[0] in SOUND[kind]
        given = SOUND[kind].replace(*given)
    name = "x" if kind in READERS else f"x.{kind}"
    write(tmp_path, given if kind == "folder" else {name: given})
    error, read = READERS.get(kind, (InputError, read_folder))
    with pytest.raises(error, match=says):
        read(tmp_path / name if kind in READERS else tmp_path)
