"""The pages: whole without a script, nothing from elsewhere, nothing of others executed."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from tests.service.conftest import Start, publish

from evofeed.service.access.auth import create_token
from evofeed.service.pages import charts

EVIL = "<script>alert(1)</script>"


class Page(HTMLParser):
    """Tags, attributes and text of a page; unbalanced tags are an error."""

    VOID = ("meta", "link", "input", "br", "img")

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(answer.text)
        assert not self._open, self._open

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag) -> None:
        if tag != "p" or self._open[-1] == "p":
            assert self._open.pop() == tag

    def handle_data(self, data) -> None:
        self.text += data


PAGES = [
    "/",
    "/ui/datasets/demo",
    "/ui/datasets/demo?min_length=40&max_length=90",
    "/ui/datasets/demo/snapshots/main/chains/0003_A",
    "/ui/login",
]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_whole_and_loads_nothing_from_elsewhere(served, path) -> None:
    answer = served.client.get(path)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
    page = Page(answer)
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", answer.text, re.DOTALL)
    assert scripts and all(re.fullmatch(r' src="/static/[\w.]+\.js" defer', a) for a, _ in scripts)
    assert not any(body for _, body in scripts) and "style" not in page.tags
    for name, value in page.attributes:
        assert name != "style" and not name.startswith("on"), name
        if name in ("href", "src", "action"):
            assert value.startswith(("/", "#")), value
    assert "script-src 'self'" in answer.headers["content-security-policy"]


def test_the_first_page_lists_datasets_and_their_troubles(served, start: Start, tmp_path) -> None:
    text = Page(served.client.get("/")).text
    assert "demo" in text and served.second[:12] in text and "45" in text
    torn = Path(shutil.copytree(served.folder, tmp_path / "torn"))
    (torn / "snapshots" / served.second / "manifest.json").write_text("{")
    client = start(datasets={"new": str(tmp_path / "nowhere"), "torn": str(torn)})
    text = Page(client.get("/")).text
    assert "nothing is published yet" in text
    assert "manifest" in text, "and says what is wrong with the other"


def test_a_dataset_without_a_snapshot_has_a_page_that_says_how_to_get_one(
    start: Start, tmp_path
) -> None:
    client = start(datasets={"new": str(tmp_path / "nowhere")})
    answer = client.get("/ui/datasets/new")
    assert answer.status_code == 200
    assert "POST /v1/jobs" in Page(answer).text


def test_an_emptied_field_is_not_asked_for_and_other_filters_stay(served) -> None:
    asked = (
        "/ui/datasets/demo?max_length=&min_length=20&max_resolution=2.5&method=x-ray+diffraction"
    )
    answer = served.client.get(asked)
    assert answer.status_code == 200, answer.text
    form = dict(re.findall(r'name="(\w+)"[^>]*? value="([^"]*)"', answer.text))
    assert form["max_resolution"] == "2.5" and form["method"] == "x-ray diffraction"
    assert form["min_length"] == "20" and form["max_length"] == ""


def test_a_dataset_page_shows_histograms_chains_and_history(served) -> None:
    answer = served.client.get("/ui/datasets/demo?min_length=40")
    page = Page(answer)
    assert answer.text.count('class="chart"') == 5 and page.tags.count("rect") > 20
    assert served.second[:12] in page.text and served.first[:12] in page.text
    assert "0000_A" in page.text or "0001_A" in page.text
    assert "None" not in page.text and '<td class="n">0.0</td>' not in answer.text, "unknown"
    rows = served.get("/chains?min_length=40&count=true").json()
    assert f'data-count="{rows["matched"]}"' in answer.text


def test_what_others_wrote_is_shown_and_not_executed(start: Start, folder, tmp_path) -> None:
    client = start()
    new = {"name": "x", "uri": str(folder[0]), "description": EVIL}
    assert client.post("/v1/datasets", json=new).status_code == 201
    assert EVIL not in client.get("/ui/datasets/x").text
    assert EVIL in Page(client.get("/ui/datasets/x")).text
    missing = client.get(f"/ui/datasets/{EVIL}")
    assert missing.status_code in (404, 422) and EVIL not in missing.text
    publish(tmp_path / "d", range(3))


def test_errors_are_pages_for_pages_and_json_for_the_rest(served) -> None:
    page = served.client.get("/ui/datasets/nowhere")
    assert page.status_code == 404 and "no dataset" in Page(page).text
    assert (
        served.client.get("/ui/datasets/demo?limit=x")
        .headers["content-type"]
        .startswith("text/html")
    )
    json = served.client.get("/v1/datasets/nowhere", headers={"Accept": "text/html"})
    assert json.headers["content-type"] == "application/problem+json"


def test_a_browser_hands_in_a_token_and_keeps_a_cookie_that_reads(start: Start, folder) -> None:
    client = start(auth="on", datasets={"demo": str(folder[0])})
    _, token = create_token(start.database(), label="b", scopes=["read"])
    turned_away = client.get("/")
    assert (turned_away.status_code, turned_away.headers["location"]) == (303, "/ui/login?then=%2F")
    wrong = client.post("/ui/login", data={"token": "evf_nope"})
    assert wrong.status_code == 401 and "set-cookie" not in wrong.headers
    right = client.post("/ui/login", data={"token": token})
    assert right.status_code == 303
    cookie = right.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert client.get("/").status_code == 200  # the client kept the cookie
    assert client.get("/ui/datasets/demo").status_code == 200


def test_what_pages_load_is_ours_and_all_there_is_to_fetch(served) -> None:
    assert served.client.get("/static/style.css").headers["content-type"].startswith("text/css")
    text = served.client.get("/ui/datasets/demo").text
    for path in set(re.findall(r'"(/static/[^"]+)"', text)):
        assert served.client.get(path).status_code == 200, path
    for other in ("style.css.map", "..%2fsettings.py", "x.css", ".css"):
        assert served.client.get(f"/static/{other}").status_code == 404


def test_an_empty_column_has_no_chart() -> None:
    assert charts.histogram({"kind": "integer", "known": 0}, "x", "y", [], str) is None
    assert charts.years({}, {}, str) is None
    assert charts.histogram({"edges": [1, 2], "counts": [0]}, "x", "y", [0], str) is not None
