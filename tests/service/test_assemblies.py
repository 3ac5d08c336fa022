"""Complexes over HTTP: rows by filter, the client, and the loader on a served dataset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tests.loader.complexes import three_complexes

from evofeed.loader import AssemblyConfig, FeatureLoader, LoaderConfig
from evofeed.protein.assembly_numbers import (
    chains_of,
    interfaces_of,
    pseudo_beta_distances,
    shared_species,
)
from evofeed.protein.interfaces import interface_residues
from evofeed.service import Client, serving
from evofeed.service.pages.entry import distances_html
from evofeed.store import Dataset, copy_dataset

SIZES = LoaderConfig(
    crop_size=24, max_msa_clusters=8, max_extra_msa=16, max_templates=1, max_recycling_iters=0,
    assemblies=AssemblyConfig(msa_rows=32, paired_rows=16, min_rows=24),
)  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Dataset]]:
    dataset = three_complexes(tmp_path_factory.mktemp("complexes"))
    with serving({"demo": dataset.uri}) as url:
        yield url, dataset


def rows(url: str, digest: str, **query: object) -> httpx.Response:
    path = f"{url}/v1/datasets/demo/snapshots/{digest}/assemblies"
    return httpx.get(path, params=query, timeout=60)  # type: ignore[arg-type]


QUERIES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["1abc", "2def", "3ghi"]),
    ({"stoichiometry": ["A2", "A2B"]}, ["1abc", "2def"]),
    ({"min_chains": 5}, ["3ghi"]),
    ({"max_entities": 2, "min_chains": 3}, ["1abc"]),
    ({"where": {"column": "num_res", "op": ">", "value": 50}}, ["3ghi"]),
]


def test_filters_choose_rows_of_the_table_page_by_page(served: tuple[str, Dataset]) -> None:
    table = {row["assembly_id"]: row for row in served[1].assemblies.table.to_pylist()}
    with Client(served[0]) as client:
        for query, names in QUERIES:
            found = list(client.assemblies("demo", page=1, **query))
            assert [row["assembly_id"] for row in found] == names, query
            for row in found:
                assert row == {name: table[row["assembly_id"]][name] for name in row}
                assert {"stoichiometry", "copies", "author_chains", "num_interface"} <= set(row)


def test_what_is_wrong_is_said(served: tuple[str, Dataset]) -> None:
    url, dataset = served
    bad = rows(url, dataset.digest, where='{"column": "nothing", "op": "known"}')
    assert bad.status_code == 422 and "nothing" in bad.text
    assert rows(url, dataset.digest, count=True, min_chains=5).json()["matched"] == 1
    alone = dataset.manifest.parent or ""
    assert rows(url, alone).json()["assemblies"] == []
    table = httpx.get(f"{url}/v1/datasets/demo/snapshots/{alone}/members.arrow", timeout=60)
    assert table.status_code == 404 and "no members.arrow" in table.text


def test_a_loader_over_http_gives_the_batches_of_the_folder_and_so_does_a_copy(
    served: tuple[str, Dataset], tmp_path: Path
) -> None:
    url, dataset = served
    remote = Dataset.open(f"{url}/v1/datasets/demo")
    assert list(remote.assemblies) == list(dataset.assemblies)
    batches = []
    for source in (dataset, remote):
        with FeatureLoader(source.assemblies, SIZES, device="cpu", reader="thread") as loader:
            batches.append(next(iter(loader)))
    for name, value in batches[0].items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, batches[1][name]), name
    assert copy_dataset(remote.uri, str(tmp_path / "copy")).digest == dataset.digest
    assert Dataset.open(tmp_path / "copy").verify(deep=True) == []


LISTING = "/ui/datasets/demo?table=assemblies"
PAGES = "/ui/datasets/demo/snapshots/main/assemblies"


def page(served: tuple[str, Dataset], path: str = "", status: int = 200) -> httpx.Response:
    base = PAGES if path.startswith("/") else LISTING
    answer = httpx.get(f"{served[0]}{base}{path}", timeout=60)
    assert answer.status_code == status, answer.text
    return answer


def test_the_page_of_complexes_filters_sorts_and_leads_to_each(served: tuple[str, Dataset]) -> None:
    whole = page(served).text
    assert 'data-count="3"' in whole and whole.count('class="chart"') == 3
    assert "stoichiometry=A2B" in whole
    some = page(served, "&stoichiometry=A2&stoichiometry=A2B&max_chains=2&min_interface=").text
    assert 'data-count="1"' in some and "2def" in some and "3ghi" not in some
    order = page(served, "&sort=num_res&desc=true").text
    assert order.index("/3ghi") < order.index("/2def")
    dataset = httpx.get(f"{served[0]}/ui/datasets/demo", timeout=60).text
    assert ">3 complexes</a>" in dataset
    alone = served[1].manifest.parent
    empty = httpx.get(f"{served[0]}{LISTING}&at={alone}", timeout=60)
    assert "no complex passes" in empty.text


def test_a_complexs_page_shows_chains_interfaces_partners_and_structure(
    served: tuple[str, Dataset],
) -> None:
    record = served[1].assemblies["1abc"]
    answer = page(served, "/1abc")
    text = answer.text
    # What draws structures needs it, and no page without one has it (test_dashboard.py).
    assert "'unsafe-eval'" in answer.headers["content-security-policy"]
    assert "A2B" in text
    chains = chains_of(record)
    assert [(c.name, c.asym_id, c.entity_id, c.sym_id) for c in chains] == [
        ("H", 1, 1, 1), ("L", 2, 1, 2), ("M", 3, 2, 1),
    ]  # fmt: skip
    found = (record.all_atom_positions, record.all_atom_mask, record.asym_id())
    assert sum(chain.interface for chain in chains) == len(interface_residues(*found)) > 0  # type: ignore[arg-type]
    assert f"<b>{shared_species(record)}</b> species have rows" in text
    assert "One sequence: its rows stand beside themselves" in page(served, "/2def").text
    assert "distances between residues" in text and "&quot;H 1&quot;,&quot;H 2&quot;" in text
    assert f"/snapshots/{served[1].digest}/assemblies/1abc/files/1abc.cif" in text
    missing = page(served, "/nothing", 404).text
    assert "no complex" in missing


def test_pairs_of_chains_that_touch_are_those_of_all_distances(served: tuple[str, Dataset]) -> None:
    record = served[1].assemblies["3ghi"]
    chains = chains_of(record)
    distance, chain = pseudo_beta_distances(record), record.asym_id()
    found = {one.chains: (one.contacts, one.residues) for one in interfaces_of(record, chains)}
    want = {}
    for a in range(1, len(chains) + 1):
        for b in range(a + 1, len(chains) + 1):
            touch = distance[chain == a][:, chain == b] < 8.0
            if touch.any():
                sides = (int(touch.any(1).sum()), int(touch.any(0).sum()))
                want[a, b] = (int(touch.sum()), sides)
    assert found == want and want
    named = replace(record, copies=tuple(tuple("A-" + n for n in names) for names in record.copies))
    assert "A-" in distances_html(named)  # names that mmCIF does not take


def test_a_complex_downloads_with_its_chain_ids(
    served: tuple[str, Dataset], tmp_path: Path
) -> None:
    record, folder = served[1].assemblies["1abc"], f"/{served[1].digest}/assemblies/1abc/files"
    base = f"{served[0]}/ui/datasets/demo/snapshots{folder}"
    fasta = httpx.get(f"{base}/1abc.fasta", timeout=60).text
    heads = [line.split()[0] for line in fasta.splitlines() if line[0] == ">"]
    assert heads == [">1abc_H", ">1abc_L", ">1abc_M"]
    cif = httpx.get(f"{base}/1abc.cif", timeout=60)
    assert "attachment" in cif.headers["content-disposition"]
    atoms = [line.split() for line in cif.text.splitlines() if line.startswith("ATOM")]
    assert record.all_atom_mask is not None and len(atoms) == record.all_atom_mask.sum()
    assert {(row[6], row[7]) for row in atoms} == {("H", "1"), ("L", "1"), ("M", "2")}
    assert httpx.get(f"{base}/other.cif", timeout=60).status_code == 404
