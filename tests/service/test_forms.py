"""What the pages do: every form needs its session's word, and has the rights of its token."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from tests.service.conftest import Start

from evofeed.service.access.auth import SCOPES, create_token
from evofeed.service.jobs.scheduler import Scheduler

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
        other, f"{other}?table=assemblies", f"{other}/snapshots/main/chains/x",
    ):  # fmt: skip
        assert browser.get(path).status_code == 403, path


def test_a_job_is_submitted_cancelled_and_tried_again_by_forms(
    start: Start, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scheduler, "start", lambda self: None)
    browser = Browser(start())
    place = str(tmp_path / "d")
    browser.client.post("/v1/datasets", json={"name": "demo", "uri": place})
    assert "Submit a job" in browser.get(DEMO).text
    fields = {"dataset": "demo", "input_uri": str(tmp_path / "raw"), "ref": "main"}
    more = {"preset": "safe", "workers": "1", "max_broken": "1", "message": "first", "deadline": ""}
    job = browser.send("/ui/jobs", **fields, **more).headers["location"]
    assert f"{job}/cancel" in browser.get(job).text
    assert browser.send(f"{job}/cancel").status_code == 303
    page = browser.get(job)
    assert page.status_code == 200 and "first" in page.text and place not in page.text
    assert f"{job}/retry" in page.text and f"{job}/cancel" not in page.text
    assert browser.send(f"{job}/retry").status_code == 303
    wrong = {"input_uri": "relative"}, {"workers": "many"}, {"max_broken": "7"}
    for bad in (*wrong, {"preset": "none"}, {"ref": "a b"}):
        assert browser.send("/ui/jobs", **fields | bad).status_code == 422, bad
