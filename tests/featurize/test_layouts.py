"""Every layout of a data set leads to the same chains and the same records."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from tests.conftest import golden_files
from tests.featurize.golden import INPUTS, openfold_record
from tests.featurize.test_pdb import residue
from tests.featurize.test_readers import write

from evofeed.base.errors import InputError
from evofeed.featurize import FeaturizeConfig, discover, featurize_chain
from evofeed.featurize.formats.alignment_db import read_index
from evofeed.featurize.job.options import absolute
from evofeed.featurize.records.template_library import read_obsolete, read_release_dates

GOLDEN = golden_files("data/golden")
OPENFOLD = FeaturizeConfig.openfold()
CACHES = golden_files("data/golden/caches/mmcif_cache.json")


def small_chains(count: int = 2) -> list[Path]:
    """The chain folders with the smallest alignments that have a structure."""
    folders = [p for p in (INPUTS[0] / "alignments").iterdir() if structure_of(p).exists()]
    return sorted(folders, key=lambda p: sum(f.stat().st_size for f in p.iterdir()))[:count]


def structure_of(folder: Path) -> Path:
    return INPUTS[0] / "mmcif" / f"{folder.name.rpartition('_')[0]}.cif"


def flattened(root: Path) -> None:
    for folder in small_chains():
        shutil.copytree(folder, root / "alignments" / folder.name)
        (root / "data").mkdir(exist_ok=True)
        shutil.copy(structure_of(folder), root / "data")


def as_downloaded(root: Path) -> None:
    for folder in small_chains():
        for file in folder.iterdir():
            a3m = root / "pdb" / folder.name / "a3m"
            a3m.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, a3m)
        (root / "pdb" / folder.name / "cif").mkdir()
        shutil.copy(structure_of(folder), root / "pdb" / folder.name / "cif")


def packed(root: Path) -> None:
    flattened(root)
    for number, file in enumerate(sorted(p for p in root.rglob("*") if p.is_file())):
        data = file.read_bytes()
        if number % 2:
            Path(f"{file}.gz").write_bytes(gzip.compress(data))
        else:
            Path(f"{file}.zst").write_bytes(zstandard.compress(data))
        file.unlink()


def alphafolds_output(root: Path) -> None:
    for folder in small_chains():
        shutil.copytree(folder, root / folder.name / "msas")
        (root / "mmcif").mkdir(exist_ok=True)
        shutil.copy(structure_of(folder), root / "mmcif")
        (root / folder.name / "ranking_debug.json").write_text("{}")


def write_alignment_db(root: Path, shards: int) -> dict[str, Any]:
    """Writes chain folders as OpenFold's script does; returns the content of the index."""
    root.mkdir(parents=True, exist_ok=True)
    index: dict[str, Any] = {}
    for number, folder in enumerate(small_chains()):
        db = root / f"alignment_db_{number % shards}.db"
        files = []
        with db.open("ab") as handle:
            for file in sorted(folder.iterdir()):
                files.append([file.name, handle.tell(), file.stat().st_size])
                handle.write(file.read_bytes())
        index[folder.name] = {"db": db.name, "files": files}
    (root / "alignment_db.index").write_text(json.dumps(index, indent=4))
    return index


def sharded_db(root: Path) -> None:
    write_alignment_db(root / "alignment_db", 2)
    shutil.copytree(INPUTS[0] / "mmcif", root / "mmcif")


def old_db(root: Path) -> None:
    old = {name: entry["files"] for name, entry in write_alignment_db(root, 1).items()}
    (root / "alignment_db_0.db").rename(root / "alignment_db.db")
    (root / "alignment_db.index").write_text(json.dumps(old))
    shutil.copytree(INPUTS[0] / "mmcif", root / "mmcif")


LAYOUTS: list[Callable[[Path], None]] = [
    *(flattened, as_downloaded, alphafolds_output, packed, sharded_db, old_db)
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_every_layout_gives_the_same_records(
    layout: Callable[[Path], None], tmp_path: Path, golden: Path
) -> None:
    layout(tmp_path)
    sources = discover(tmp_path)
    assert [source.chain_id for source in sources] == sorted(f.name for f in small_chains())
    for source in sources:
        assert source.nbytes() > 0
        record, want = featurize_chain(source), openfold_record(source.chain_id)
        assert np.array_equal(record.msa, want.msa)
        assert np.array_equal(record.deletion_matrix(), want.deletion_matrix())
        assert record.msa_species == want.msa_species
        assert record.all_atom_positions is not None and want.all_atom_positions is not None
        assert np.array_equal(record.all_atom_positions, want.all_atom_positions)


def test_the_recorded_alignment_db_gives_the_recorded_rows(golden: Path) -> None:
    index = next((GOLDEN[0] / "alignment_db").glob("*.index"))
    sources = discover(GOLDEN[0] / "alignment_db", structure_dir=INPUTS[0] / "mmcif")
    assert {source.chain_id for source in sources} == set(read_index(str(index)))
    for source in sources:
        record = featurize_chain(source, OPENFOLD)
        assert np.array_equal(record.msa, openfold_record(source.chain_id).msa)


@pytest.mark.parametrize("path", CACHES, ids=lambda path: path.name)
def test_release_dates_are_read_from_openfolds_cache(path: Path, golden: Path) -> None:
    dates = read_release_dates(str(path))
    assert dates == {n.lower(): e["release_date"] for n, e in json.loads(path.read_text()).items()}


def test_chains_of_a_duplicate_group_share_alignments(tmp_path: Path, golden: Path) -> None:
    flattened(tmp_path)
    first = small_chains()[0].name
    (tmp_path / "duplicate_pdb_chains.txt").write_text(f"9xyz_Q {first} 8xyz_R\n7xyz_A\n")
    by_id = {source.chain_id: source for source in discover(tmp_path)}
    assert by_id["9xyz_Q"].alignment_dir == by_id["8xyz_R"].alignment_dir
    assert by_id["9xyz_Q"].alignment_dir == by_id[first].alignment_dir
    assert "7xyz_A" not in by_id


def test_colabfold_results_use_the_best_model_as_a_prediction(tmp_path: Path) -> None:
    """Of twelve residues every third has a low confidence."""
    rows = [residue("ALA", "A", f"{n + 1} ", b=20 + 70 * (n % 3 > 0)) for n in range(12)]
    models = [f"job_unrelaxed_rank_{rank}_alphafold2.pdb" for rank in ("002", "001")]
    files = dict.fromkeys(models, "".join(rows)) | {"job.a3m": f"#12\t1\n>101\n{'A' * 12}\n"}
    (source,) = discover(write(tmp_path, files))
    assert source.is_distillation and "rank_001" in (source.structure or "")
    record = featurize_chain(source)
    assert record.is_distillation and record.all_atom_mask is not None
    assert record.all_atom_mask.sum() == 12 * 4 * 2 // 3


def test_structures_alone_are_all_their_protein_chains(tmp_path: Path, golden: Path) -> None:
    shutil.copytree(INPUTS[0] / "mmcif", tmp_path / "mmcif")
    (tmp_path / "mmcif" / "broken.cif").write_text("data_broken\n_entry.id broken\n")
    problems: list[InputError] = []
    sources = discover(tmp_path / "mmcif", problems=problems)
    parsed = json.loads((GOLDEN[0] / "mmcif" / "parse.json").read_text())
    chains = {f"{n}_{c}" for n, entry in parsed.items() for c in entry.get("chain_to_seqres", ())}
    assert chains <= {source.chain_id for source in sources}
    assert "broken" in {Path(str(problem.path)).stem for problem in problems}
    record = featurize_chain(sources[0])
    assert record.num_alignments == 1 and "no alignment" in " ".join(record.dropped)


def test_obsolete_entries_are_followed_to_the_end(tmp_path: Path) -> None:
    rows = ["OBSLTE    31-JUL-94 116L     216L", "OBSLTE    31-JUL-95 216L     316L"]
    rows += ["OBSLTE    31-JUL-95 1AAA     1BBB", "OBSLTE    31-JUL-95 1BBB     1AAA"]
    rows += ["OBSLTE    31-JUL-95 1CCC", " LIST OF OBSOLETE COORDINATE ENTRIES AND SUCCESSORS"]
    (tmp_path / "obsolete.dat").write_text("\n".join(rows))
    assert read_obsolete(str(tmp_path / "obsolete.dat")) == {"116l": "316l", "216l": "316l"}


def test_one_chains_own_folder_is_refused_and_the_right_one_named(tmp_path: Path) -> None:
    for name in ("alignments/1abc_A/x.a3m", "up/1abc_A/a3m/x.a3m", "af/T1/msas/x.a3m", "q/h.hhr"):
        write(tmp_path, {name: ">q\nACDEF\n"})
    for folder in ("alignments/1abc_A", "up/1abc_A", "af/T1", "q"):
        with pytest.raises(InputError, match="one chain's own folder") as caught:
            discover(tmp_path / folder)
        assert str((tmp_path / folder).parent) in caught.value.message
    assert [source.chain_id for source in discover(tmp_path / "up")] == ["1abc_A"]


def test_an_input_called_by_dots_is_the_folder_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flattened(tmp_path)
    chain = small_chains(1)[0]
    alignments = tmp_path / "alignments"
    as_named = discover(alignments)
    assert all(source.structure for source in as_named)
    monkeypatch.chdir(alignments)
    assert discover(".") == as_named
    monkeypatch.chdir(alignments / chain.name)
    assert discover("..") == as_named
    assert absolute("..") == str(alignments)


def test_files_that_are_used_are_not_listed_as_unused_however_the_folder_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"x.a3m": ">x\nMKV\n>y\nM-V\n"})
    monkeypatch.chdir(tmp_path)
    problems: list[InputError] = []
    assert [source.chain_id for source in discover(".", problems=problems)] == ["x"]
    assert not problems


def test_a_dangling_link_among_alignments_is_an_error(tmp_path: Path) -> None:
    folder = write(tmp_path / "alignments" / "1abc_A", {"a.a3m": ">q\nACDEF\n"})
    (folder / "notes.txt").symlink_to("nowhere")  # not an alignment
    (source,) = discover(tmp_path)
    assert featurize_chain(source).sequence == "ACDEF"
    for make in (lambda path: path.symlink_to("nowhere"), os.mkfifo):
        make(folder / "b.sto")
        with pytest.raises(InputError, match="fix or remove it") as caught:
            featurize_chain(source)
        assert (caught.value.item, caught.value.path) == ("1abc_A", str(folder / "b.sto"))
        (folder / "b.sto").unlink()


def test_an_alignment_whose_name_is_not_utf_8_is_an_error_and_other_files_are_ignored(
    tmp_path: Path,
) -> None:
    folder = write(tmp_path / "alignments" / "1abc_A", {"a.a3m": ">q\nACDEF\n"})
    (folder / os.fsdecode(b"caf\xe9.txt")).write_text("not an alignment")
    (source,) = discover(tmp_path)
    assert [ref.name for _, ref in source.alignment_files()] == ["a.a3m"]
    (folder / os.fsdecode(b"caf\xe9.sto")).write_text("")
    with pytest.raises(InputError, match=r"1abc_A/caf\?\.sto.*not UTF-8: rename it") as caught:
        featurize_chain(source)
    assert caught.value.item == "1abc_A"


@pytest.mark.parametrize("deeper", [False, True])
def test_a_folder_without_permission_is_a_problem_and_other_chains_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deeper: bool
) -> None:
    for chain_id in ("1abc_A", "2abc_A"):
        write(tmp_path, {f"alignments/{chain_id}/a3m/hits.a3m": ">q\nACDE\n"})
    secret = str(tmp_path / "alignments" / "1abc_A" / ("a3m" if deeper else ""))
    listed = os.scandir

    def scandir(path: Any) -> Any:  # the tests may run as root, who may list everything
        if str(path) == secret.rstrip("/"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    problems: list[InputError] = []
    sources = {source.chain_id: source for source in discover(tmp_path, problems=problems)}
    assert featurize_chain(sources.pop("2abc_A")).sequence == "ACDE"
    if sources:
        with pytest.raises(InputError) as caught:
            featurize_chain(sources.pop("1abc_A"))
        problems.append(caught.value)
    (problem,) = problems
    assert "cannot be listed: Permission denied" in str(problem)
    assert str(problem.path) == secret.rstrip("/")
