"""The pages: whole without a script, nothing from elsewhere; forms have the word of a session."""

from __future__ import annotations

import html
import io
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from tests.service.conftest import Start, make_record, publish
from tests.store.test_entries import synthetic_dataset

from evofeed.protein.residues import GAP
from evofeed.service.access.auth import SCOPES
from evofeed.service.pages.page import _PAGES

PAGE = "/ui/datasets/demo"


def text_of(answer: httpx.Response) -> str:
    """What a page says, without its tags."""
    return html.unescape(re.sub(r"<[^>]+>", "", answer.text))


def test_what_pages_load_is_ours_and_all_there_is_to_fetch(served) -> None:
    """That nothing is from elsewhere, or inline, Chromium sees: `test_browser.py`."""
    answer = served.client.get(PAGE)
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "style-src 'self'"} <= set(policy)
    assert "unsafe" not in str(policy)
    loaded = set(re.findall(r'"(/static/[^"]+)"', answer.text))
    assert any(path.endswith(".js") for path in loaded)
    for path in loaded:
        assert served.client.get(path).status_code == 200, path
    assert served.client.get("/static/style.css").headers["content-type"].startswith("text/css")
    for other in ("style.css.map", "..%2fsettings.py", "x.css", ".css"):
        assert served.client.get(f"/static/{other}").status_code == 404


def test_the_first_page_lists_datasets_and_their_troubles(served, start: Start, tmp_path) -> None:
    text = text_of(served.client.get("/"))
    assert "demo" in text and served.second[:12] in text and "45" in text
    torn = Path(shutil.copytree(served.folder, tmp_path / "torn"))
    (torn / "snapshots" / served.second / "manifest.json").write_text("{")
    client = start(datasets={"new": str(tmp_path / "nowhere"), "torn": str(torn)})
    text = text_of(client.get("/"))
    assert "nothing is published yet" in text
    assert "manifest" in text, "and says what is wrong with the other"
    synthetic_dataset(str(tmp_path / "whole"))
    client = start(datasets={"whole": str(tmp_path / "whole")})
    for path in ("/", "/ui/datasets/whole"):
        assert "1 entry" in text_of(client.get(path)), path
    listed = text_of(client.get("/ui/datasets/whole?table=entries&max_resolution=9&sort=num_atoms"))
    assert "made-1" in listed and "Entries of whole" in listed
    assert "made-1" in client.get("/ui/datasets/whole").text, "it has no chains to list first"
    assert client.get("/ui/datasets/whole?table=entries&min_depth=1").status_code == 422


def test_a_job_that_failed_after_its_last_chain_has_done_all_its_work() -> None:
    result = {"num_chains": 26, "num_good": 24, "num_broken": 2}
    job = SimpleNamespace(state="failed", progress={"share": 0.78}, result=result)
    assert "100 %" in str(_PAGES.get_template("parts.html").module.progress(job))


def test_a_dataset_page_shows_its_filters_histograms_chains_and_history(served) -> None:
    answer = served.client.get(f"{PAGE}?min_length=40&max_length=&method=x-ray+diffraction")
    assert answer.status_code == 200, "an emptied field is not asked for"
    form = dict(re.findall(r'name="(\w+)"[^>]*? value="([^"]*)"', answer.text))
    fields = [form[name] for name in ("min_length", "max_length", "method")]
    assert fields == ["40", "", "x-ray diffraction"]
    answer = served.client.get(f"{PAGE}?min_length=40")
    text = text_of(answer)
    assert answer.text.count('class="chart"') == 5 and answer.text.count("<rect") > 20
    assert served.second[:12] in text and served.first[:12] in text
    assert "None" not in text and '<td class="n">0.0</td>' not in answer.text, "unknown"


def test_errors_are_pages_for_pages_and_json_for_the_rest(served) -> None:
    page = served.client.get("/ui/datasets/nowhere", headers={"Cookie": "evofeed_session=x"})
    assert page.status_code == 404 and "no dataset" in text_of(page)
    assert "sign out" in page.text and "GET /v1" not in page.text and 'href="/">all' in page.text
    assert "text/html" in served.client.get("/ui/datasets/demo?limit=x").headers["content-type"]
    evil = "<script>alert(1)</script>"
    missing = served.client.get(f"/ui/datasets/{evil}")
    assert missing.status_code in (404, 422) and evil not in missing.text
    json = served.client.get("/v1/datasets/nowhere", headers={"Accept": "text/html"})
    assert json.headers["content-type"] == "application/problem+json"


def shown(text: str) -> list[str]:
    return re.findall(r'/chains/(\w+)">\1</a>', text)


def matched(text: str) -> int:
    found = re.search(r'data-count="(\d+)"', text)
    assert found is not None
    return int(found[1])


def test_part_of_an_id_finds_chains_in_any_case(served) -> None:
    assert shown(served.client.get(f"{PAGE}?q=003_a").text) == ["0003_A"]
    assert matched(served.client.get(f"{PAGE}?q=nothing").text) == 0


@pytest.mark.parametrize("sort", ["resolution", "release_date", "chain_id"])
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
    assert re.search(r'aria-label="\d+ kept: ', text), "a bar of one number is called so"
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


FORMS = [  # path, fields
    ("/ui/jobs", {"dataset": "demo", "input_uri": "/nowhere/raw"}),
    (f"/ui/jobs/{'0' * 16}/cancel", {}),
    (f"/ui/jobs/{'0' * 16}/retry", {}),
]


def word(client: httpx.Client) -> str:
    """The word that forms of this session carry."""
    found = re.search(r'name="word" value="([\w-]+)"', client.get(PAGE).text + client.get("/").text)
    assert found is not None, "no form at all"
    return found[1]


def signed_in(start: Start, *scopes: str, **options: Any) -> httpx.Client:
    """Somebody's browser."""
    client, text = start.client(), start.token(*scopes, **options)
    assert client.post("/ui/login", data={"token": text}).status_code == 303
    return client


def test_no_form_works_without_the_word_of_its_session(start: Start, folder) -> None:
    start(auth="on", datasets={"demo": str(folder[0])})
    client, theirs = signed_in(start, *SCOPES), word(signed_in(start, *SCOPES))
    for path, fields in FORMS:
        for wrong in ({}, {"word": ""}, {"word": theirs}, {"word": "é"}):
            answer = client.post(path, data=fields | wrong)
            assert answer.status_code == 403 and "form is refused" in answer.text, (path, wrong)
        right = fields | {"word": word(client)}
        foreign = client.post(path, data=right, headers={"Origin": "https://evil.example"})
        assert foreign.status_code == 403, path
        known = client.post(path, data=right, headers={"Origin": start.url})
        assert "form is refused" not in known.text, path
    assert client.post("/v1/tokens", json={"label": "x", "scopes": ["read"]}).status_code == 401
    client.cookies.clear()
    for path, fields in FORMS:
        assert client.post(path, data=fields).headers["location"].startswith("/ui/login")


def test_pages_of_a_reader_offer_nothing_a_reader_may_not_do(start: Start, folder) -> None:
    start(auth="on", datasets={"demo": str(folder[0]), "other": "/nowhere/x"})
    browser = signed_in(start, "read", datasets=["demo"])
    for path in ("/", PAGE):
        found = browser.get(path).text
        assert re.findall(r'<form method="post" action="([^"]+)"', found) == ["/ui/logout"]
        assert "other" not in re.sub(r"<[^>]+>", "", found) and str(folder[0]) not in found
    assert browser.get("/ui/datasets/other?table=assemblies").status_code == 403


def test_a_job_is_submitted_cancelled_and_tried_again_by_forms(
    start: Start, tmp_path, jobs_wait: None
) -> None:
    browser, place = start(datasets={"demo": str(tmp_path / "d")}), str(tmp_path / "d")

    def send(path: str, **fields: Any) -> httpx.Response:
        return browser.post(path, data={"word": word(browser), **fields})

    assert "Submit a job" in browser.get(PAGE).text
    fields = {"dataset": "demo", "input_uri": str(tmp_path / "raw"), "ref": "main"}
    more = {"preset": "safe", "workers": "1", "max_broken": "1", "message": "first", "deadline": ""}
    job = send("/ui/jobs", **fields, **more).headers["location"]
    assert f"{job}/cancel" in browser.get(job).text
    assert f'href="{job}"' in browser.get(PAGE).text, "before anything is published"
    assert send(f"{job}/cancel").status_code == 303
    page = browser.get(job)
    assert page.status_code == 200 and "first" in page.text and place not in page.text
    assert f"{job}/retry" in page.text and f"{job}/cancel" not in page.text
    assert send(f"{job}/retry").status_code == 303
    wrong = {"input_uri": "relative"}, {"workers": "many"}, {"max_broken": "7"}
    for bad in (*wrong, {"preset": "none"}, {"ref": "a b"}):
        assert send("/ui/jobs", **fields | bad).status_code == 422, bad
