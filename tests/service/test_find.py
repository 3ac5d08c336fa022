"""Finding chains on the page: filters, order, counts and files agree with the API."""

from __future__ import annotations

import csv
import io
import re

import numpy as np
import pyarrow.parquet
import pytest
from tests.service.conftest import make_record, publish

from evofeed.protein.residues import GAP
from evofeed.store import Dataset

PAGE = "/ui/datasets/demo"


def shown(text: str) -> list[str]:
    return re.findall(r'/chains/(\w+)">\1</a>', text)


def matched(text: str) -> int:
    found = re.search(r'data-count="(\d+)"', text)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize(
    "asked",
    [
        "min_length=40&max_length=90",
        "min_depth=5&max_depth=30",
        "max_resolution=3",
        "released_from=2012-01-01&released_before=2019-01-01",
        "method=solution+nmr&method=x-ray+diffraction",
        "is_distillation=true",
        "has_structure=false",
        'where={"column":"num_res","op":">","value":60}',
    ],
)
def test_every_filter_finds_what_the_api_finds(served, asked: str) -> None:
    text = served.client.get(f"{PAGE}?{asked}").text
    rows = served.get(f"/chains?{asked}&count=true&limit=1000").json()
    assert shown(text) == [row["chain_id"] for row in rows["chains"]][:50]
    assert matched(text) == rows["matched"]


def test_part_of_an_id_finds_chains_in_any_case(served) -> None:
    assert shown(served.client.get(f"{PAGE}?q=003_a").text) == ["0003_A"]
    assert matched(served.client.get(f"{PAGE}?q=nothing").text) == 0


@pytest.mark.parametrize("sort", ["num_res", "resolution", "release_date", "chain_id"])
@pytest.mark.parametrize("desc", ["true", "false"])
def test_an_order_puts_what_is_unknown_last(served, sort: str, desc: str) -> None:
    ids = shown(served.client.get(f"{PAGE}?sort={sort}&desc={desc}").text)
    rows = {row["chain_id"]: row[sort] for row in served.get("/chains?limit=1000").json()["chains"]}
    values = [rows[chain] for chain in ids]
    known = [value for value in values if value]
    assert len(ids) == 45 and values[: len(known)] == known
    assert known == sorted(known, reverse=desc == "true")


def test_bars_and_facets_count_what_passes_and_lead_to_it(served) -> None:
    text = served.client.get(f"{PAGE}?is_distillation=false").text
    bars = re.findall(r'<a href="([^"]+)" aria-label="[^"]*?: (\d+)(?: of (\d+))?"', text)
    assert len(bars) > 20
    for link, some, _ in bars[::7]:
        found = served.client.get(link.replace("&amp;", "&")).text
        low = "max_resolution" if "max_resolution" in link else ""
        assert matched(found) == int(some) or (low and matched(found) >= int(some)), link
    facets = re.findall(r'<a href="([^"]+)" class="facet">[^<]+<span>(\d+)<', text)
    assert len(facets) > 4
    for link, count in facets:  # those that are not set: the others lead away
        assert matched(served.client.get(link.replace("&amp;", "&")).text) == int(count), link


def test_the_files_hold_what_the_page_shows(served) -> None:
    asked = "min_length=40&sort=num_res&desc=true"
    ids = shown(served.client.get(f"{PAGE}?{asked}").text)
    table = list(csv.DictReader(io.StringIO(served.client.get(f"{PAGE}/export.csv?{asked}").text)))
    assert [row["chain_id"] for row in table] == ids and "offset" not in table[0]
    data = served.client.get(f"{PAGE}/export.parquet?{asked}").content
    parquet = pyarrow.parquet.read_table(io.BytesIO(data))
    assert parquet["chain_id"].to_pylist() == ids
    fasta = served.client.get(f"{PAGE}/export.fasta?{asked}").text
    dataset = Dataset.open(str(served.folder))
    entries = [entry.split("\n", 1) for entry in fasta.split(">")[1:]]
    assert [head.split()[0] for head, _ in entries] == ids
    assert entries[0][1].replace("\n", "") == dataset[ids[0]].sequence
    empty = served.client.get(f"{PAGE}/export.parquet?q=nothing").content
    assert pyarrow.parquet.read_table(io.BytesIO(empty)).num_rows == 0


def test_pages_go_forward_and_back_and_stay_on_their_snapshot(start, tmp_path) -> None:
    first = publish(tmp_path / "d", range(120), per_shard=200)
    client = start(datasets={"demo": str(tmp_path / "d")})
    text = client.get(PAGE).text
    following = re.search(r'rel="next" href="([^"#]+)', text)
    assert following is not None and first in following[1]
    publish(tmp_path / "d", range(3), expect=first)
    second = client.get(following[1].replace("&amp;", "&")).text
    assert shown(second) == [f"{i:04d}_A" for i in range(50, 100)]
    assert 'rel="prev"' in second
    assert shown(client.get(f"{PAGE}?page=99999").text) == ["0000_A", "0001_A", "0002_A"]


CHAIN = "/ui/datasets/demo/snapshots/main/chains"


def test_a_chain_page_tells_what_the_record_holds(served) -> None:
    record = make_record(7)
    text = served.client.get(f"{CHAIN}/0007_A").text
    letters = re.sub(
        r"<[^>]*>|\s", "", text.split('class="sequence"')[1].split("</div>\n</div>")[0]
    )
    assert re.sub(r"[^A-Z]", "", letters.split(">", 1)[-1]) == record.sequence
    assert f"{record.num_res} residue" in text and "0006_A" in text and "0008_A" in text
    assert "no structure" in text and "data-structure" not in text and "Å" not in text
    missing = served.client.get(f"{CHAIN}/9999_A")
    assert missing.status_code == 404 and "no chain" in missing.text


def test_a_chains_alignment_and_files_are_kept_by_browsers(served) -> None:
    own = f"/ui/datasets/demo/snapshots/{served.second}/chains/0007_A"
    record = make_record(7)
    rows = served.client.get(f"{own}/alignment")
    assert "immutable" in rows.headers["cache-control"]
    assert len(rows.content) == record.msa.size
    assert rows.text.startswith(record.sequence)
    again = {"If-None-Match": rows.headers["etag"]}
    assert served.client.get(f"{own}/alignment", headers=again).status_code == 304
    second = {"Range": f"bytes={record.num_res}-{2 * record.num_res - 1}"}
    row = served.client.get(f"{own}/alignment", headers=second)
    gaps = np.frombuffer(row.content, np.uint8) == ord("-")
    assert row.status_code == 206 and np.array_equal(gaps, record.msa[1] == GAP)
    a3m = served.client.get(f"{own}/files/0007_A.a3m")
    assert a3m.text.startswith(">0007_A\n") and "attachment" in a3m.headers["content-disposition"]
    with np.load(io.BytesIO(served.client.get(f"{own}/files/0007_A.npz").content)) as arrays:
        assert np.array_equal(arrays["msa"], make_record(7).msa)
    for other in ("0007_A.cif", "0008_A.a3m", "0007_A.exe", "0007_A"):
        assert served.client.get(f"{own}/files/{other}").status_code == 404
