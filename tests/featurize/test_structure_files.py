"""Folders of structures as downloaded: mirrors, nested folders, every compression."""

from __future__ import annotations

import gzip
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from tests.featurize.test_mmcif import small
from tests.featurize.test_pdb import SEQRES, protein

from evofeed.base.errors import InputError, TemplateError
from evofeed.featurize import ChainSource, FeaturizeConfig, discover, featurize_chain
from evofeed.featurize.records.template_library import TemplateLibrary
from evofeed.featurize.structures.structure_files import entry_of

LEGACY = "REVDAT   1   19-OCT-01 1ABC    0\n" + SEQRES + protein("A", "MET ALA GLY")
TEXT = small([(".", "1.0", "1.0")]).decode()


def put(path: Path, data: str | bytes) -> Path:
    """Writes a file, compressed by its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = data.encode() if isinstance(data, str) else data
    pack: dict[str, Callable[[bytes], bytes]] = {
        ".gz": gzip.compress,
        ".xz": lzma.compress,
        ".zst": zstandard.compress,
    }
    path.write_bytes(pack.get(path.suffix, bytes)(raw))
    return path


def mmcif_mirror(root: Path) -> None:
    put(root / "mmCIF" / "ab" / "1abc.cif.gz", TEXT)
    put(root / "mmCIF" / "xy" / "9xyz.cif.gz", TEXT)


def legacy_mirror(root: Path) -> None:
    put(root / "pdb" / "ab" / "pdb1abc.ent.gz", LEGACY)
    put(root / "pdb" / "xy" / "pdb9xyz.ent.gz", LEGACY)


def both_mirrors(root: Path) -> None:
    mmcif_mirror(root / "divided")
    legacy_mirror(root / "divided")


def nested(root: Path) -> None:
    put(root / "batch1" / "sub" / "1abc.cif.gz", TEXT)
    put(root / "batch2" / "deep" / "er" / "9xyz.pdb.xz", LEGACY)


MIRRORS = [mmcif_mirror, legacy_mirror, both_mirrors, nested]


def names(sources: list[ChainSource]) -> list[str]:
    return [source.chain_id for source in sources]


@pytest.mark.parametrize("make", MIRRORS, ids=lambda make: make.__name__)
def test_a_mirror_is_an_input_and_a_folder_of_structures_and_templates(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path / "mirror")
    sources = discover(tmp_path / "mirror")
    assert names(sources) == ["1abc_A", "9xyz_A"]
    if make is both_mirrors:  # of both formats of an entry mmCIF is read
        assert all(str(source.structure).endswith(".cif.gz") for source in sources)
    for folder in (tmp_path / "mirror").iterdir():  # a user may also name a subfolder
        if folder.is_dir():
            assert {"1abc_A", "9xyz_A"} >= set(names(discover(folder)))
    (tmp_path / "raw" / "alignments" / "1abc_A").mkdir(parents=True)
    (source,) = discover(tmp_path / "raw", structure_dir=tmp_path / "mirror")
    assert featurize_chain(source).all_atom_positions is not None
    assert "1abc" in Path(str(source.structure)).name
    if make is nested:
        return
    library = TemplateLibrary(str(tmp_path / "mirror"), FeaturizeConfig())
    assert library.structure("1abc").sequences["A"]
    with pytest.raises(TemplateError, match="no structure file"):
        library.structure("2abc")
    below = next(path for path in (tmp_path / "mirror").rglob("ab")).parent
    assert TemplateLibrary(str(below), FeaturizeConfig()).find("9xyz")
    theirs = TemplateLibrary(str(below), FeaturizeConfig.openfold())
    assert (theirs.find("9xyz") is None) == (make is legacy_mirror)


def test_equal_names_in_several_folders_are_reported(tmp_path: Path) -> None:
    for job in ("job1", "job2"):
        put(tmp_path / job / "ranked_0.pdb", LEGACY)
    problems: list[InputError] = []
    assert names(discover(tmp_path, problems=problems)) == ["ranked_0_A"]
    assert ["there twice" in str(problem) for problem in problems] == [True]


def test_entries_of_alphafolds_database_are_found_by_accession(tmp_path: Path) -> None:
    put(tmp_path / "afdb" / "P0" / "AF-P01112-F1-model_v4.pdb.gz", LEGACY)
    fasta = put(tmp_path / "set.fasta", ">sp|P01112|RASH_HUMAN\nMAGSAGS\n")
    (source,) = discover(fasta, structure_dir=tmp_path / "afdb", is_distillation=True)
    assert featurize_chain(source).is_distillation
    assert names(discover(tmp_path / "afdb")) == ["AF-P01112-F1-model_v4_A"]


def test_one_unreadable_structure_is_a_problem_and_the_others_are_read(tmp_path: Path) -> None:
    put(tmp_path / "1abc.cif", TEXT)
    put(tmp_path / "2abc.cif", "no mmCIF")
    problems: list[InputError] = []
    assert names(discover(tmp_path, problems=problems)) == ["1abc_A"]
    (problem,) = problems
    assert "2abc.cif" in str(problem) and "not mmCIF" in str(problem)


def test_entries_are_read_from_file_names_of_the_wwpdb() -> None:
    assert [entry_of(n) for n in ("pdb4hhb.ent", "pdb4hhb.pdb", "x.ent", "1abc.cif")] == [
        *("4hhb", "pdb4hhb", "x", "1abc")
    ]


def test_a_mirror_next_to_alignments_is_found_by_its_name(tmp_path: Path) -> None:
    put(tmp_path / "alignments" / "1abc_A" / "x.a3m", ">q\nAG\n")
    mmcif_mirror(tmp_path / "m")
    shutil.move(tmp_path / "m" / "mmCIF", tmp_path / "mmcif")
    (source,) = discover(tmp_path)
    assert str(source.structure).endswith("ab/1abc.cif.gz")
