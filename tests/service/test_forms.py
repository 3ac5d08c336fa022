"""What the pages do: every form needs its session's word, and has the rights of its token."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from tests.service.conftest import Start, work_off

from evofeed.service.access.auth import SCOPES, create_token
from evofeed.synth import write_synthetic

DEMO = "/ui/datasets/demo"
FORMS = [  # path, fields
    ("/ui/jobs", {"dataset": "demo", "input_uri": "/nowhere/raw"}),
    (f"/ui/jobs/{'0' * 16}/cancel", {}),
    (f"/ui/jobs/{'0' * 16}/retry", {}),
]


class Browser:
    """Somebody signed in: sends forms as their pages have them."""

    def __init__(self, client: httpx.Client, token: str = "") -> None:
        self.client = client
        if token:
            assert client.post("/ui/login", data={"token": token}).status_code == 303

    def get(self, path: str) -> httpx.Response:
        return self.client.get(path)

    def word(self) -> str:
        found = re.search(r'name="word" value="([\w-]+)"', self.get(DEMO).text + self.get("/").text)
        assert found is not None, "no form at all"
        return found[1]

    def send(self, path: str, **fields: Any) -> httpx.Response:
        return self.client.post(path, data={"word": self.word(), **fields})


@pytest.fixture
def open_service(start: Start, folder) -> Browser:
    """A service that asks nobody for a token."""
    return Browser(start(datasets={"demo": str(folder[0])}))


def test_no_form_works_without_the_word_of_its_session(start: Start, folder) -> None:
    client = start(auth="on", datasets={"demo": str(folder[0])})
    database = start.database()
    one, two = (create_token(database, label="x", scopes=list(SCOPES))[1] for _ in range(2))
    with httpx.Client(base_url=client.base_url) as other:
        theirs = Browser(other, two).word()
    browser = Browser(client, one)
    for path, fields in FORMS:
        for word in ({}, {"word": ""}, {"word": theirs}, {"word": "é"}):
            answer = client.post(path, data=fields | word)
            assert answer.status_code == 403 and "form is refused" in answer.text, (path, word)
        right = fields | {"word": browser.word()}
        foreign = client.post(path, data=right, headers={"Origin": "https://evil.example"})
        assert foreign.status_code == 403, path
        known = client.post(path, data=right, headers={"Origin": str(client.base_url).rstrip("/")})
        assert "form is refused" not in known.text, path
    assert client.post("/v1/tokens", json={"label": "x", "scopes": ["read"]}).status_code == 401
    client.cookies.clear()
    for path, fields in FORMS:
        assert client.post(path, data=fields).headers["location"].startswith("/ui/login")


def test_a_form_wants_the_scope_of_what_it_does(start: Start, folder) -> None:
    client = start(auth="on", datasets={"demo": str(folder[0])})
    database = start.database()
    for scope in SCOPES:
        text = create_token(database, label="x", scopes=[scope])[1]
        for path, fields in FORMS:
            answer = client.post(path, data=fields, headers={"Authorization": f"Bearer {text}"})
            lacks = answer.status_code == 403 and "lacks the scope" in answer.text
            assert lacks == (scope != "jobs"), (path, scope, answer.status_code)
            assert answer.status_code < 500


def test_pages_of_a_reader_offer_nothing_a_reader_may_not_do(start: Start, folder) -> None:
    client = start(auth="on", datasets={"demo": str(folder[0]), "other": "/nowhere/x"})
    database = start.database()
    text = create_token(database, label="x", scopes=["read"], datasets=["demo"])[1]
    browser = Browser(client, text)
    for path in ("/", DEMO):
        found = browser.get(path).text
        assert re.findall(r'<form method="post" action="([^"]+)"', found) == ["/ui/logout"]
        assert "other" not in re.sub(r"<[^>]+>", "", found) and str(folder[0]) not in found
    other = "/ui/datasets/other"
    for path in (
        other, f"{other}/assemblies", f"{other}/snapshots/main/chains/x", f"{other}/export.csv",
    ):  # fmt: skip
        assert browser.get(path).status_code == 403, path


def test_a_dataset_is_registered_filled_by_a_job_and_its_job_can_be_tried_again(
    start: Start, tmp_path, monkeypatch
) -> None:
    browser = Browser(start(max_jobs=1))
    write_synthetic(tmp_path / "raw", 3, seed=0)
    (tmp_path / "raw" / "alignments" / "1bad_A").mkdir(parents=True, exist_ok=True)
    place = str(tmp_path / "d")
    browser.client.post("/v1/datasets", json={"name": "demo", "uri": place})
    assert "Submit a job" in browser.get(DEMO).text
    fields = {"dataset": "demo", "input_uri": str(tmp_path / "raw"), "ref": "main"}
    more = {"preset": "safe", "workers": "1", "max_broken": "1", "message": "first", "deadline": ""}
    job = browser.send("/ui/jobs", **fields, **more).headers["location"]
    cancelled = browser.send(f"{job}/cancel")
    assert cancelled.status_code == 303
    page = browser.get(job)
    assert page.status_code == 200 and "first" in page.text and place not in page.text
    wrong = browser.send("/ui/jobs", **fields | {"input_uri": "relative"})
    assert wrong.status_code == 422
    for bad in ({"workers": "many"}, {"max_broken": "7"}, {"preset": "none"}, {"ref": "a b"}):
        assert browser.send("/ui/jobs", **fields | bad).status_code == 422, bad


def test_a_job_page_tells_of_each_attempt(start: Start, tmp_path, monkeypatch) -> None:
    browser = Browser(start(max_jobs=1))
    write_synthetic(tmp_path / "raw", 2, seed=0)
    browser.client.post("/v1/datasets", json={"name": "demo", "uri": str(tmp_path / "d")})
    settings = start.settings[-1]
    assert settings.max_jobs == 1
    new = {"dataset": "demo", "input_uri": str(tmp_path / "nowhere")}
    job = browser.client.post("/v1/jobs", json=new).json()["id"]
    browser.client.post(f"/v1/jobs/{job}/cancel")
    work_off(start, monkeypatch)
    from tests.service.conftest import wait_for_job

    wait_for_job(browser.client, job)
    text = browser.get(f"/ui/jobs/{job}").text
    assert f"/ui/jobs/{job}/retry" in text and "/cancel" not in text
    assert browser.send(f"/ui/jobs/{job}/retry").status_code == 303
