"""ColabFold's search: clusters expanded to their members; later databases start from a profile.

`benchmarks/colabfold_search.py` holds its rows beside those of ColabFold's own function.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from tests.featurize.golden import INPUTS
from tests.featurize.search_programs import (
    cluster_db,
    family,
    hh_db,
    mmseqs_db,
    require_programs,
)

from evofeed.errors import InputError
from evofeed.featurize import SearchConfig, SearchOptions
from evofeed.featurize.search import Database, Search, SearchCache, pack_templates, pair
from evofeed.featurize.search.pairing import records_of

ONE, OTHER = family(1, 12, 90), family(2, 6, 90)


def records(*families: list[str]) -> list[tuple[str, str]]:
    return [
        (f"UniRef100_F{f}N{n} Thing n=1 TaxID={n + 1} RepID=X", s)
        for f, kin in enumerate(families)
        for n, s in enumerate(kin[1:])
    ]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_programs()
    folder = tmp_path_factory.mktemp("colabfold")
    cluster_db(folder / "uniref", records(ONE, OTHER))
    mmseqs_db(folder / "env", [(f"env{n}", s) for n, s in enumerate(family(1, 30, 90)[12:])])
    mmseqs_db(folder / "pdb", [("1abc_A", ONE[2]), ("2xyz_B", OTHER[1])])
    return folder


def search(
    folder: Path, cache: Path, *names: str, expansion: str = "filter"
) -> dict[tuple[str, str], bytes]:
    """Texts by the name of a query and that of a database."""
    databases = [Database(n, str(folder / n), is_template=n == "pdb") for n in names]
    kept = SearchCache(cache)
    config = SearchConfig.colabfold(expansion=expansion)
    job = Search([ONE[0], OTHER[0]], databases, config, SearchOptions(workers=1), kept)
    try:
        assert job.known() is None
        found, broken = job.run()
        assert not broken and job.known() == found
        names_of = {ONE[0]: "one", OTHER[0]: "other"}
        return {(names_of[s], names[n]): kept.read(hit) for (s, n), hit in found.items()}
    finally:
        job.close()
        kept.close()


def test_members_of_clusters_are_found_and_next_databases_start_from_the_profile(
    places: Path, tmp_path: Path
) -> None:
    found = search(places, tmp_path / "cache", "uniref", "env", "pdb")
    rows = records_of(found["one", "uniref"])
    assert rows[0] == ("query", ONE[0])
    names = {head.partition("\t")[0] for head, _ in rows[1:]}
    assert names == {f"UniRef100_F0N{n}" for n in range(11)}  # more than there are clusters
    assert len((places / "uniref.index").read_text().splitlines()) < 11
    assert all(len(head.split("\t")) == 11 and "TaxID=" in head for head, _ in rows[1:])
    assert len(records_of(found["one", "env"])) > 5
    assert len(records_of(found["other", "env"])) == 1
    (hit,) = found["other", "pdb"].decode().splitlines()
    assert hit.split("\t")[:2] == ["query", "2xyz_B"] and hit.endswith("M")


def test_rows_to_pair_are_all_there_by_taxon(places: Path, tmp_path: Path) -> None:
    found = search(places, tmp_path / "cache", "uniref", expansion="pair")
    whole = pair([found["one", "uniref"], found["other", "uniref"]], complete=True)
    heads = [[head for head, _ in records_of(block)[1:]] for block in whole]
    taxa = [[head.partition("TaxID=")[2].split()[0] for head in block] for block in heads]
    assert taxa[0] == taxa[1] and sorted(taxa[0]) == ["1", "2", "3", "4", "5"]


def test_templates_of_mmseqs_need_a_profile_to_start_from(places: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="profile of a first database"):
        search(places, tmp_path / "cache", "uniref", "pdb", expansion="")


def test_templates_are_packed_as_clients_unpack_them(tmp_path: Path, golden: Path) -> None:
    require_programs()
    database = hh_db(tmp_path / "pdb70", {n: [(n, ONE[0])] for n in ("133l_A", "9xyz_A")})
    folder = str(Path(INPUTS[0]) / "template_mmcif")
    wanted = ["133l_A", "9xyz_A", "../133l_A", "none"]  # the second has no structure
    data = pack_templates(wanted, database, folder)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        files = {name: (tar.extractfile(name) or io.BytesIO()).read() for name in tar.getnames()}
    assert files["pdb70_a3m.ffdata"] == f">133l_A\n{ONE[0]}\n".encode() + b"\0"
    name, offset, size = files["pdb70_a3m.ffindex"].decode().split()
    assert (name, int(offset), int(size)) == ("133l_A", 0, len(files["pdb70_a3m.ffdata"]))
    assert files["133l.cif"].startswith(b"data_") and "9xyz.cif" not in files
    assert files["pdb70_hhm.ffindex"].startswith(b"133l_A\t0\t")
    with pytest.raises(InputError, match="no such database"):
        pack_templates(wanted, str(tmp_path / "none"), folder)
