"""ColabFold's search: clusters expanded to their members; later databases start from a profile.

`benchmarks/results/colabfold_search.json` compares 13 real queries with ColabFold's own function.
"""

from __future__ import annotations

import importlib.metadata
import io
import random
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import own_packages
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
from evofeed.featurize.formats.a3m import a3m_rows
from evofeed.featurize.search import Database, Search, SearchCache, pack_templates, pair
from evofeed.synth.entries import entry_cif

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("inside")]
ONE, OTHER = family(1, 12, 90), family(2, 6, 90)


def records(*families: list[str]) -> list[tuple[str, str]]:
    return [
        (f"UniRef100_F{f}N{n} Thing n=1 TaxID={n + 1} RepID=X", s)
        for f, kin in enumerate(families)
        for n, s in enumerate(kin[1:])
    ]


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_programs()
    folder = tmp_path_factory.mktemp("colabfold")
    cluster_db(folder / "uniref", records(ONE, OTHER))
    mmseqs_db(folder / "env", [(f"env{n}", s) for n, s in enumerate(family(1, 30, 90)[12:])])
    mmseqs_db(folder / "pdb", [("1abc_A", ONE[2])])
    return folder


def search(
    folder: Path, cache_dir: Path, *names: str, expansion: str = "filter"
) -> dict[tuple[str, str], bytes]:
    """Results by the names of query and database."""
    databases = [Database(n, str(folder / n), is_template=n == "pdb") for n in names]
    cache = SearchCache(cache_dir)
    config = SearchConfig.colabfold(expansion=expansion)
    search_job = Search([ONE[0], OTHER[0]], databases, config, SearchOptions(workers=1), cache)
    try:
        assert search_job.cached_results() is None
        results, failures = search_job.run()
        assert not failures and search_job.cached_results() == results
        names_of = {ONE[0]: "one", OTHER[0]: "other"}
        return {(names_of[s], names[n]): cache.read(hit) for (s, n), hit in results.items()}
    finally:
        search_job.close()
        cache.close()


def test_members_of_clusters_are_found_and_next_databases_start_from_the_profile(
    databases: Path, tmp_path: Path
) -> None:
    results = search(
        databases, tmp_path / "cache", "uniref", "env"
    )  # templates: service/test_tickets.py
    rows = a3m_rows(results["one", "uniref"])
    assert rows[0] == ("query", ONE[0])
    names = {head.partition("\t")[0] for head, _ in rows[1:]}
    assert names == {f"UniRef100_F0N{n}" for n in range(11)}  # more than there are clusters
    assert len((databases / "uniref.index").read_text().splitlines()) < 11
    assert all(len(head.split("\t")) == 11 and "TaxID=" in head for head, _ in rows[1:])
    assert len(a3m_rows(results["one", "env"])) > 5
    assert len(a3m_rows(results["other", "env"])) == 1


@pytest.fixture
def colabfold_search(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of ColabFold's `colabfold_search`, without options that mmseqs 14 lacks (given
    with their default values) and without quotes, which a shell would have removed."""
    monkeypatch.setitem(sys.modules, "importlib_metadata", importlib.metadata)
    own_packages(monkeypatch, "colabfold")
    module = importlib.import_module("colabfold.mmseqs.search")
    run_mmseqs = module.run_mmseqs

    def run(program: Path, words: list[Any]) -> None:
        new = ("--prefilter-mode", "--pairing-mode", "--pairing-dummy-mode")
        rest = [w for option, w in zip(["", *words], words, strict=False) if option not in new]
        run_mmseqs(program, [str(word).strip("'") for word in rest if word not in new])

    monkeypatch.setattr(module, "run_mmseqs", run)
    return module


def colabfold_rows(folder: Path, kind: str, **options: Any) -> list[list[tuple[str, str]]]:
    """Rows of both queries by a function of ColabFold."""
    module = sys.modules["colabfold.mmseqs.search"]
    base = folder / kind
    base.mkdir()
    fasta(base / "q.fasta", [("one", ONE[0]), ("other", OTHER[0])])
    call("mmseqs", "createdb", "q.fasta", "qdb", "--shuffle", "0", cwd=base)
    getattr(module, f"mmseqs_search_{kind}")(
        folder, base, uniref_db=Path("uniref"), s=None, threads=1, **options
    )
    suffix = ".paired.a3m" if kind == "pair" else ".a3m"
    return [named_rows((base / f"{n}{suffix}").read_bytes().rstrip(b"\0")) for n in (0, 1)]


@pytest.mark.filterwarnings("ignore")
def test_rows_and_pairs_are_colabfolds_own_searchs(tmp_path: Path, colabfold_search: Any) -> None:
    require_programs()
    rng, taxa = random.Random(0), {}
    records_of_taxa = []
    for f, kin in enumerate((family(1, 20, 90), family(2, 20, 90))):
        for n, sequence in enumerate(kin[1:]):  # several rows of some taxa, some of one chain only
            name = f"UniRef100_F{f}N{n}"
            taxa[name] = rng.randrange(2, 12) + (0 if n % 3 else 20 * f)
            records_of_taxa.append((f"{name} Thing n=1 TaxID={taxa[name]} RepID=X", sequence))
    cluster_db(tmp_path / "uniref", records_of_taxa)
    for prefix in ("uniref_seq", "uniref"):  # ColabFold pairs by the one, ours names by the other
        add_taxa(str(tmp_path / prefix), taxa)
    texts = search(tmp_path, tmp_path / "cache", "uniref")
    expected = colabfold_rows(tmp_path, "monomer", use_env=False)
    assert [named_rows(texts[name, "uniref"]) for name in ("one", "other")] == expected
    assert min(map(len, expected)) > 10
    texts = search(tmp_path, tmp_path / "cache", "uniref", expansion="pair")
    blocks = pair([texts["one", "uniref"], texts["other", "uniref"]], complete=True)
    rows = list(zip(*colabfold_rows(tmp_path, "pair", pair_env=False), strict=True))
    paired = list(zip(*map(named_rows, blocks), strict=True))
    assert len(paired) == len(set(paired)) > 4
    assert set(paired) == set(rows)  # mmseqs orders by taxon id, `pair` by similarity
    assert [taxa[one[0]] for one, _ in rows] == sorted({taxa[one[0]] for one, _ in paired})


def named_rows(a3m: bytes) -> list[tuple[str, str]]:
    """Name and letters of each row except the query's."""
    return [(head.split()[0], letters) for head, letters in a3m_rows(a3m)[1:]]


def test_templates_of_mmseqs_need_a_profile_to_start_from(databases: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="profile of a first database"):
        search(databases, tmp_path / "cache", "uniref", "pdb", expansion="")


def test_templates_are_packed_as_clients_unpack_them(tmp_path: Path) -> None:
    require_programs()
    database = hh_db(tmp_path / "pdb70", {n: [(n, ONE[0])] for n in ("133l_A", "9xyz_A")})
    folder = str(tmp_path / "mmcif")
    Path(folder).mkdir()
    Path(folder, "133l.cif").write_text(entry_cif("133l", 0))
    chain_names = ["133l_A", "9xyz_A", "../133l_A", "none"]  # the second has no structure
    data = pack_templates(chain_names, database, folder)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        files = {name: (tar.extractfile(name) or io.BytesIO()).read() for name in tar.getnames()}
    assert files["pdb70_a3m.ffdata"] == f">133l_A\n{ONE[0]}\n".encode() + b"\0"
    name, offset, size = files["pdb70_a3m.ffindex"].decode().split()
    assert (name, int(offset), int(size)) == ("133l_A", 0, len(files["pdb70_a3m.ffdata"]))
    assert files["133l.cif"].startswith(b"data_") and "9xyz.cif" not in files
    assert files["pdb70_hhm.ffindex"].startswith(b"133l_A\t0\t")
    with pytest.raises(InputError, match="no such database"):
        pack_templates(chain_names, str(tmp_path / "none"), folder)
