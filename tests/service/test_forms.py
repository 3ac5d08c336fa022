"""What the pages do: every form needs its session's word, and has the rights of its token."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import httpx
import pytest
from tests.service.conftest import Start, open_client, publish, work_off

from evofeed.service.access.auth import SCOPES, create_token
from evofeed.synth import write_synthetic

DEMO = "/ui/datasets/demo"
FORMS = [  # path, scope, fields
    ("/ui/datasets", "publish", {"name": "new", "uri": "/nowhere/new"}),
    ("/ui/jobs", "jobs", {"dataset": "demo", "input_uri": "/nowhere/raw"}),
    (f"/ui/jobs/{'0' * 16}/cancel", "jobs", {}),
    (f"/ui/jobs/{'0' * 16}/retry", "jobs", {}),
    (f"{DEMO}/refs", "publish", {"ref": "tagged", "digest": "0" * 64}),
    (f"{DEMO}/refs/main/policy", "admin", {"protected": "true"}),
    ("/ui/tokens", "admin", {"label": "x", "scopes": "admin"}),
    (f"/ui/tokens/{'0' * 16}/revoke", "admin", {}),
    ("/ui/webhooks", "jobs", {"url": "https://hooks.example.org/x"}),
    (f"/ui/webhooks/{'0' * 16}/remove", "jobs", {}),
    ("/ui/runs", "publish", {"name": "x", "dataset": "demo", "folder": "/nowhere"}),
    ("/ui/runs/x/forget", "publish", {}),
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
    for path, _, fields in FORMS:
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
    for path, _, fields in FORMS:
        assert client.post(path, data=fields).headers["location"].startswith("/ui/login")


def test_a_form_wants_the_scope_of_what_it_does(start: Start, folder) -> None:
    client = start(auth="on", datasets={"demo": str(folder[0])})
    database = start.database()
    for scope in SCOPES:
        text = create_token(database, label="x", scopes=[scope])[1]
        for path, needed, fields in FORMS:
            answer = client.post(path, data=fields, headers={"Authorization": f"Bearer {text}"})
            lacks = answer.status_code == 403 and "lacks the scope" in answer.text
            assert lacks == (scope != needed), (path, scope, answer.status_code)
            assert answer.status_code < 500


def test_pages_of_a_reader_offer_nothing_a_reader_may_not_do(start: Start, folder) -> None:
    client = start(auth="on", datasets={"demo": str(folder[0]), "other": "/nowhere/x"})
    database = start.database()
    text = create_token(database, label="x", scopes=["read"], datasets=["demo"])[1]
    browser = Browser(client, text)
    for path in ("/", DEMO, f"{DEMO}/snapshots/main/card"):
        found = browser.get(path).text
        assert re.findall(r'<form method="post" action="([^"]+)"', found) == ["/ui/logout"]
        assert "other" not in re.sub(r"<[^>]+>", "", found) and str(folder[0]) not in found
    other = "/ui/datasets/other"
    for path in (
        other, f"{other}/diff?before=main", f"{other}/snapshots/main/card",
        f"{other}/snapshots/main/chains/x", f"{other}/export.csv", "/ui/tokens", "/ui/audit",
        "/ui/webhooks",
    ):  # fmt: skip
        assert browser.get(path).status_code == 403, path


def test_a_dataset_is_registered_filled_by_a_job_and_its_job_can_be_tried_again(
    start: Start, tmp_path, monkeypatch
) -> None:
    browser = Browser(start(max_jobs=1))
    write_synthetic(tmp_path / "raw", 3, seed=0)
    (tmp_path / "raw" / "alignments" / "1bad_A").mkdir(parents=True, exist_ok=True)
    place = str(tmp_path / "d")
    there = browser.send("/ui/datasets", name="demo", uri=place, description="of a test")
    assert there.headers["location"] == DEMO and "Submit a job" in browser.get(DEMO).text
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


def test_a_ref_moves_from_where_the_page_has_shown_it_and_within_its_policy(
    start: Start, tmp_path
) -> None:
    first = publish(tmp_path / "d", range(5))
    second = publish(tmp_path / "d", range(6), expect=first)
    browser = Browser(start(datasets={"demo": str(tmp_path / "d")}))
    tagged = browser.send(f"{DEMO}/refs", ref="v1", digest=first, message="as published")
    assert tagged.status_code == 303 and "as published" in browser.get(f"{DEMO}?ref=v1").text
    stale = browser.send(f"{DEMO}/refs", ref="main", digest=first, **{"expect.main": first[::-1]})
    assert stale.status_code == 412
    assert browser.send(f"{DEMO}/refs", ref="v1", digest=second).status_code == 412, "not new"
    browser.send(f"{DEMO}/refs/main/policy", protected="true", reviewer="admin")
    assert "protected: it does not move" in browser.get(DEMO).text
    held = browser.send(f"{DEMO}/refs", ref="main", digest=first, **{"expect.main": second})
    assert held.status_code in (403, 409)
    browser.send(f"{DEMO}/refs/main/policy", reviewer="publish")
    moved = browser.send(f"{DEMO}/refs", ref="main", digest=first, **{"expect.main": second})
    assert moved.status_code == 303
    assert browser.client.get("/v1/datasets/demo/refs/main").json()["digest"] == first


def test_all_that_must_hold_when_a_ref_moves_is_set_and_shown_on_the_page(
    start: Start, folder, tmp_path
) -> None:
    (tmp_path / "clusters.txt").write_text("0001_A 0002_A\n")
    clusters = str(tmp_path / "clusters.txt")
    datasets = {"demo": str(folder[0]), "test": str(tmp_path / "test")}
    client = start(auth="on", datasets=datasets, input_roots=(str(tmp_path),))
    browser = Browser(client, create_token(start.database(), label="a", scopes=list(SCOPES))[1])
    path, policy = f"{DEMO}/refs/main/policy", "/v1/datasets/demo/refs/main/policy"
    late = {"column": "release_date", "op": ">=", "value": "2021-10-01"}
    long = {"column": "num_res", "op": ">", "value": 900}
    fields = {
        "reviewer": "admin",
        "forbid": f"{json.dumps(late)}\r\n\r\n{json.dumps(long)}\r\n",
        "apart.dataset": ["test", "", ""],
        "apart.ref": ["valid", "", ""],
        "apart.clusters": [clusters, "", ""],
    }
    assert browser.send(path, **fields).status_code == 303
    apart = {"dataset": "test", "ref": "valid", "clusters": clusters}
    wanted = {
        "protected": False, "reviewer": "admin", "forbid": [late, long], "apart_from": [apart],
    }  # fmt: skip
    assert browser.client.get(policy).json() == wanted
    page = browser.get(DEMO).text
    assert html.unescape(page).count(json.dumps(late)) == 4, "in words and form, an example in two"
    assert "no sequence shared with" in page and clusters in page
    form = page[page.index(f'action="{path}"') :].partition("</form>")[0]
    shown = {
        "protected": "true" if "checked" in form else "",
        "reviewer": re.findall(r"<option selected>(\w+)", form),
        "forbid": html.unescape(re.findall(r"<textarea[^>]*>([^<]*)<", form)[0]),
    }
    shown |= {n: re.findall(rf'name="{re.escape(n)}"[^>]* value="([^"]*)"', form) for n in fields
              if n.startswith("apart")}  # fmt: skip
    browser.send(path, protected="true")
    assert browser.client.get(policy).json()["forbid"] == [], "what is left out is gone"
    browser.send(path, **shown)
    assert browser.client.get(policy).json() == wanted, "the form says what there was"
    for bad in (
        {"forbid": "not json"},
        {"forbid": '{"column": "num_res", "op": ">", "value": NaN}'},
        {"forbid": "[" * 20_000},
        {"forbid": '{"column": "nothing", "op": ">", "value": 1}'},
        {"reviewer": "nobody"},
        {"apart.ref": "main"},
        {"apart.dataset": "test", "apart.ref": "", "apart.clusters": "/etc/passwd"},
    ):
        assert browser.send(path, **bad).status_code in (403, 422), bad
    assert browser.client.get(policy).json() == wanted
    text = create_token(start.database(), label="r", scopes=["read"], datasets=["demo"])[1]
    with open_client(str(client.base_url), text) as reader:
        assert clusters not in reader.get(DEMO).text, "no place for readers"
        read = reader.get(policy).json()
    assert read["apart_from"] == [apart | {"clusters": "clusters.txt"}]


def test_a_policy_is_set_on_the_page_for_a_ref_that_is_not_there_yet(
    start: Start, folder, tmp_path
) -> None:
    datasets = {"demo": str(folder[0]), "new": str(tmp_path / "new")}
    client = start(auth="on", datasets=datasets)
    browser = Browser(client, create_token(start.database(), label="a", scopes=list(SCOPES))[1])
    reader = create_token(start.database(), label="r", scopes=["read"])[1]
    for dataset in ("demo", "new"):  # the second has no ref at all
        page, forms = f"/ui/datasets/{dataset}", f'action="/ui/datasets/{dataset}/policies"'
        assert forms in browser.get(page).text
        made = browser.send(f"{page}/policies", ref="release", protected="true")
        assert (made.status_code, made.headers["location"]) == (303, f"{page}#history")
        policy = browser.client.get(f"/v1/datasets/{dataset}/refs/release/policy").json()
        assert policy["protected"] is True
        shown = browser.get(page).text
        assert "When release is made" in shown and "protected: it does not move" in shown
        assert f'action="{page}/refs/release/policy"' in shown, "it can be changed"
        with open_client(str(client.base_url), reader) as read:
            assert (
                "When release is made" in read.get(page).text and forms not in read.get(page).text
            )
        again = browser.send(f"{page}/policies", ref="release", protected="")
        assert again.status_code == 409 and "form of that ref" in again.text
        for bad in ("", "a/b"):
            assert browser.send(f"{page}/policies", ref=bad).status_code == 422
        assert browser.send(f"{page}/refs/release/policy", protected="").status_code == 303
        policy = browser.client.get(f"/v1/datasets/{dataset}/refs/release/policy").json()
        assert policy["protected"] is False
    assert browser.send("/ui/datasets/demo/policies", ref="main").status_code == 409
    word = browser.send("/ui/datasets/demo/policies", ref="x", word="wrong")
    assert word.status_code == 403 or word.status_code == 422
    browser.send("/ui/datasets/demo/policies", ref="later", protected="true")
    refused = browser.send(f"{DEMO}/refs", ref="later", digest=folder[1])
    assert refused.status_code == 409 and "protected" in refused.text


def test_a_token_is_shown_once_and_revoked(open_service: Browser) -> None:
    made = open_service.send(
        "/ui/tokens", label="trainer", scopes="read", datasets="demo", days="30", max_jobs="2"
    )
    text = re.search(r'class="secret">(evf_\w+_[\w-]+)<', made.text)
    assert made.status_code == 200 and text is not None
    assert made.headers["cache-control"] == "no-store"
    listed = open_service.get("/ui/tokens").text
    assert "trainer" in listed and text[1] not in listed
    token_id = text[1].split("_")[1]
    assert open_service.send(f"/ui/tokens/{token_id}/revoke").status_code == 303
    assert "revoked" in open_service.get("/ui/tokens").text
    audit = open_service.get("/ui/audit").text
    assert "token.create" in audit and "token.revoke" in audit


def test_a_webhook_is_made_where_it_may_lead_and_removed(start: Start, folder) -> None:
    hosts = ("http://127.0.0.1:9",)
    browser = Browser(start(datasets={"demo": str(folder[0])}, webhook_hosts=hosts))
    assert browser.send("/ui/webhooks", url="https://elsewhere.example/").status_code == 403
    made = browser.send("/ui/webhooks", url="http://127.0.0.1:9/x", datasets="demo")
    assert "whsec_" in made.text
    hook = re.search(r"shown=([0-9a-f]{16})", made.text)
    assert hook is not None and "whsec_" not in browser.get("/ui/webhooks").text
    assert browser.get(f"/ui/webhooks?shown={hook[1]}").status_code == 200
    assert browser.send(f"/ui/webhooks/{hook[1]}/remove").status_code == 303
    assert hook[1] not in browser.get("/ui/webhooks").text


def test_two_snapshots_are_compared_and_one_has_its_card(open_service: Browser, folder) -> None:
    _, first, second = folder
    page = open_service.get(f"{DEMO}/diff?before={first}&after=main").text
    assert "added <span>5<" in page and "removed <span>0<" in page
    assert re.findall(r'chains/(\w+)">\1<', page) == [f"{i:04d}_A" for i in range(40, 45)]
    back = open_service.get(f"{DEMO}/diff?before=main&after={first}&change=removed").text
    assert f"snapshots/{second}/chains/0040_A" in back
    assert open_service.get(f"{DEMO}/diff?before={'0' * 64}").status_code == 404
    card = open_service.get(f"{DEMO}/snapshots/main/card").text
    link = re.search(r'type="application/ld\+json" href="([^"]+)"', card)
    assert link is not None and first in card and "45" in card
    croissant = open_service.get(link[1])
    assert croissant.headers["content-type"] == "application/ld+json"
    assert json.loads(croissant.text)["dct:conformsTo"].startswith("http://mlcommons.org/croissant")


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
