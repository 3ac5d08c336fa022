"""ColabFold's search: clusters expanded to their members; later databases start from a profile.

`benchmarks/results/colabfold_search.json` has its rows beside those of ColabFold's own function.
"""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path

import pytest
from tests.featurize.golden import INPUTS
from tests.featurize.search.family import (
    add_taxa,
    call,
    cluster_db,
    family,
    fasta,
    hh_db,
    mmseqs_db,
    require_programs,
)

from evofeed.base.errors import InputError
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


def test_rows_are_paired_as_mmseqs_itself_pairs_them(tmp_path: Path) -> None:
    require_programs()
    draw, taxa = random.Random(0), {}
    known = []
    for f, kin in enumerate((family(1, 20, 90), family(2, 20, 90))):
        for n, sequence in enumerate(kin[1:]):  # several rows of some taxa, some of one chain only
            name = f"UniRef100_F{f}N{n}"
            taxa[name] = draw.randrange(2, 12) + (0 if n % 3 else 20 * f)
            known.append((f"{name} Thing n=1 TaxID={taxa[name]} RepID=X", sequence))
    cluster_db(tmp_path / "uniref", known)
    add_taxa(f"{tmp_path / 'uniref'}_seq", taxa)
    texts = search(tmp_path, tmp_path / "cache", "uniref", expansion="pair")
    blocks = pair([texts["one", "uniref"], texts["other", "uniref"]], complete=True)
    # The steps of ColabFold's own search for pairs.
    config, aligned = (
        SearchConfig.colabfold(expansion="pair"),
        ("tmp/latest/profile_1", "uniref_seq"),
    )
    fasta(tmp_path / "q.fasta", [("one", ONE[0]), ("other", OTHER[0])])
    call("mmseqs", "createdb", "q.fasta", "q", "--shuffle", "0", cwd=tmp_path)
    limits = ("--expansion-mode", "0", "--expand-filter-clusters", "0", "-e", "inf")
    for step in (
        ("search", "q", "uniref", "hits", "tmp", *config.mmseqs_options()),
        ("expandaln", "q", "uniref_seq", "hits", "uniref_aln", "all", *limits),
        ("align", *aligned, "all", "again", *config.align_options()),
        ("pairaln", "q", "uniref_seq", "again", "pairs"),
        ("align", *aligned, "pairs", "whole", "-e", "inf", "-a"),
        ("pairaln", "q", "uniref_seq", "whole", "found"),
        ("result2msa", "q", "uniref_seq", "found", "msa", "--msa-format-mode", "5"),
    ):
        call("mmseqs", *step, "--threads", "1", cwd=tmp_path)
    data = (tmp_path / "msa").read_bytes().split(b"\0")
    theirs = list(zip(*(named_rows(text) for text in data[:2]), strict=True))
    ours = list(zip(*(named_rows(text) for text in blocks), strict=True))
    assert len(ours) == len(set(ours)) > 4
    assert set(ours) == set(theirs)  # mmseqs goes by taxon id, ours by likeness
    assert [taxa[one[0]] for one, _ in theirs] == sorted({taxa[one[0]] for one, _ in ours})


def named_rows(a3m: bytes) -> list[tuple[str, str]]:
    """Name and letters of each row but the query's."""
    return [(head.split()[0], letters) for head, letters in records_of(a3m)[1:]]


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
