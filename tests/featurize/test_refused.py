"""Damaged input is one typed error that names its file, its line and what is wrong with it.

What is made to do harm too: bombs, endless rows, names that lead elsewhere.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
import zstandard
from tests.featurize.search.family import search_fasta
from tests.featurize.test_mmcif import small
from tests.featurize.test_pdb import line
from tests.featurize.test_readers import write
from tests.featurize.test_templates import HHR

from evofeed.base.errors import EvofeedError, InputError, MmcifError, MsaError, TemplateError
from evofeed.featurize import ChainSource, FeaturizeConfig, InputCaps, discover, featurize_chain
from evofeed.featurize.formats.a3m import parse_a3m
from evofeed.featurize.formats.hits import parse_hhr, parse_hmmsearch
from evofeed.featurize.formats.reading import file_ref, read_bytes, read_head
from evofeed.featurize.formats.stockholm import parse_stockholm
from evofeed.featurize.inputs.clusters import cluster_sizes
from evofeed.featurize.records.entry import entry_record
from evofeed.featurize.records.template_library import TemplateLibrary
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
    "queries": (InputError, lambda path: search_fasta(str(path), f"{path}.out", [str(path)])),
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
    assert not list(tmp_path.glob("*.out")), "nothing is begun"


CAP = 256 << 20
PACK: Any = {"gz": gzip, "zst": zstandard, "xz": lzma, "bz2": bz2}


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    yield
    assert time.process_time() - start < 60
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 2 * CAP


@pytest.mark.parametrize("kind", PACK)
def test_a_decompression_bomb_is_refused_long_before_it_unfolds(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.a3m.{kind}"
    path.write_bytes(PACK[kind].compress(b"A" * (1 << 20)) * 256)
    with pytest.raises(InputError, match="bomb"):
        read_bytes(file_ref(path))


@pytest.mark.parametrize("kind", PACK)
def test_streams_one_after_another_are_one_file_and_must_end(kind: str, tmp_path: Path) -> None:
    path, pack = tmp_path / f"x.a3m.{kind}", PACK[kind].compress
    path.write_bytes(pack(b">q\nAC") + pack(b"D\n"))
    assert read_bytes(file_ref(path)) == b">q\nACD\n"
    assert read_head(file_ref(path), 500) == b">q\nACD\n"
    path.write_bytes(pack(b">q\nAC")[:-3])
    with pytest.raises(InputError, match="damaged compressed stream"):
        read_bytes(file_ref(path))


def test_a_file_beyond_the_cap_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.a3m"
    with path.open("wb") as handle:
        handle.truncate(1 << 33)  # sparse: no bytes on disk
    with pytest.raises(InputError, match="cap"):
        read_bytes(file_ref(path), InputCaps(max_file_bytes=CAP))


def test_rows_that_promise_more_than_memory_are_refused_by_their_product() -> None:
    wide = b">q\n" + b"A" * 50_000 + b"\n" + b">x\n" * 100_000
    with pytest.raises(MsaError, match="max_cells"):
        parse_a3m(wide, caps=InputCaps(max_cells=CAP))
    sto = b"q " + b"A" * 50_000 + b"\n" + b"".join(b"x%d A\n" % i for i in range(20_000))
    with pytest.raises(MsaError, match="max_cells"):
        parse_stockholm(sto, caps=InputCaps(max_cells=CAP))


def test_huge_numbers_in_hits_and_structures_allocate_nothing() -> None:
    name = b"1abc_A/1000000000-1000000003"
    sto = b"#=GS " + name + b" DE mol:protein length:9\n" + name + b" ACDE\n"
    (hit,) = parse_hmmsearch(sto, "ACDE")
    assert max(hit.indices_hit) == 1_000_000_002
    with pytest.raises(TemplateError):
        parse_hhr(b"No 1\n>x\nAligned_cols=1e99 Sum_probs=1\n")
    far = small([(".", "1", "0.0")]).replace(b"\n1 2 GLY", b"\n1 1000000000 GLY")
    with pytest.raises(MmcifError, match="count up"):
        parse_mmcif(far, file_id="x")
    atoms = small([(".", "1", "0.0")]).replace(b"ALA A 1 1 A", b"ALA A 1000000000 1 A")
    assert parse_mmcif(atoms, file_id="x").chain("A").mask.sum() == 0
    bare = atoms[atoms.index(b"loop_\n_atom_site") :] + atoms[-40:].replace(b" A 1000", b" A 1")
    with pytest.raises(EvofeedError):
        parse_mmcif(b"data_x\n" + bare.replace(b"A 1000000000 1", b"A . 1"), file_id="x")


def test_an_unterminated_loop_or_text_field_ends_in_an_error() -> None:
    data = small([(".", "1", "0.0")])
    for piece in (b"loop_\n_a.b\n_a.c\n1 2 3\n", b"_a.b\n;never closed\n", b"_a.b 'open\n"):
        with pytest.raises(MmcifError):
            parse_mmcif(data + piece, file_id="x")


def test_a_hits_name_cannot_lead_out_of_the_template_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.cif").write_bytes(small([(".", "1", "0.0")]))
    (tmp_path / "templates").mkdir()
    library = TemplateLibrary(str(tmp_path / "templates"), FeaturizeConfig())
    for name in ("../secret", "..", "/etc/passwd", "a\0b", "ü"):
        with pytest.raises(TemplateError, match="no structure file"):
            library.structure(name)


def test_an_input_without_chains_is_an_error(tmp_path: Path) -> None:
    for source in (
        ChainSource("x"),
        ChainSource("x", alignment_dir=str(tmp_path)),
        ChainSource("x", alignment_dir=str(tmp_path / "gone")),
        ChainSource("x", structure=str(tmp_path / "gone.cif")),
        ChainSource("x", structure=str(tmp_path)),
        ChainSource("x", sequence="ACD1"),
        ChainSource("x", sequence="äöü"),
    ):
        with pytest.raises(InputError) as error:
            featurize_chain(source)
        assert str(error.value).startswith("x: ")
