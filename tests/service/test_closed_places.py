"""A name is asked about when it is given, a place again whenever it is used.

On 4865567 whoever made a link after its path had been asked about got past all of these: another
team's dataset was read and its refs written, inputs outside of every root were featurized, `retry`
asked less than `submit`; and `s3://` was refused as a root.
"""

from __future__ import annotations

import ast
from pathlib import Path

import httpx
import pytest
from tests.service.conftest import Start, open_client, publish, token, work_off
from tests.store.test_closed_folders import swapping, touched

import evofeed.service
from evofeed.service import serving
from evofeed.service.access.auth import create_token
from evofeed.service.access.places import canonical_place
from evofeed.service.jobs.scheduler import Scheduler
from evofeed.service.problems import Problem
from evofeed.synth import write_synthetic


class Teams:
    """Two teams under one root, and the client of one of them."""

    def __init__(self, start: Start, home: Path) -> None:
        self.home, self.secret = home, home / "secret"
        self.digest = publish(self.secret, range(3))
        for name in ("team", "raw", "outside"):
            (home / name).mkdir()
        client = start(
            auth="on",
            datasets={"secret": str(self.secret)},
            dataset_roots=(str(home), "s3://"),
            input_roots=(str(home / "raw"),),
        )
        self.base = str(client.base_url)
        team = (str(home / "team"), str(home / "raw"))
        self.text = token(start.database(), "read", "publish", "jobs", datasets=["gh"], roots=team)
        self.narrow = token(start.database(), "read", "publish", "jobs", roots=[str(home / "team")])
        self.everybody = token(start.database(), "read", "publish", "jobs")
        self.admin = token(start.database(), "admin")


@pytest.fixture
def teams(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Teams:
    """Their jobs wait for `work_off`."""
    monkeypatch.setattr(Scheduler, "start", lambda self: None)
    return Teams(start, tmp_path.resolve())


def test_a_link_made_after_registration_leads_to_no_other_dataset(teams: Teams) -> None:
    ghost = teams.home / "team" / "ghost"
    with open_client(teams.base, teams.text) as client:
        made = client.post("/v1/datasets", json={"name": "gh", "uri": str(ghost)})
        assert made.status_code == 201
        ghost.symlink_to(teams.secret)
        before = touched(teams.secret)
        base = "/v1/datasets/gh"
        shard = next((teams.secret / "shards").iterdir()).name
        for method, path in (
            ("GET", "refs/main"), ("GET", "refs"), ("GET", "snapshots"), ("GET", "chains?ref=main"),
            ("GET", f"snapshots/{teams.digest}"), ("GET", f"snapshots/{teams.digest}/index"),
            ("GET", f"shards/{shard}"), ("GET", f"snapshots/{teams.digest}/chains/0000_A"),
            ("DELETE", "refs/main"),
        ):  # fmt: skip
            answer = client.request(method, f"{base}/{path}", headers=_if_match(teams.digest))
            assert answer.status_code in (404, 502, 503), (path, answer.text)
            assert teams.digest not in answer.text.replace(path, "")
        planted = client.put(
            f"{base}/refs/planted", json={"digest": teams.digest}, headers={"If-None-Match": "*"}
        )
        assert planted.status_code in (404, 502, 503)
        for name in ("refs", "shards", "snapshots"):  # the folder is ours, what is in it is theirs
            if ghost.is_symlink():
                ghost.unlink()
                ghost.mkdir()
            (ghost / name).symlink_to(teams.secret / name)
        assert client.get(f"{base}/refs/main").status_code in (404, 502, 503)
        assert client.get(f"{base}/shards/{shard}").status_code in (404, 502, 503)
    assert touched(teams.secret) == before


def _if_match(digest: str) -> dict[str, str]:
    return {"If-Match": f'"{digest}"'}


def test_links_swapped_while_requests_run_show_nothing_of_another_dataset(teams: Teams) -> None:
    ours, link = teams.home / "team" / "ours", teams.home / "team" / "link"
    mine = publish(ours, range(10, 12))
    link.symlink_to(teams.secret)
    before, seen = touched(teams.secret), {"200": 0, "refused": 0}
    with open_client(teams.base, teams.text) as client:
        assert client.post("/v1/datasets", json={"name": "gh", "uri": str(ours)}).status_code == 201
        with swapping(link, ours):
            for _ in range(3000):
                answer = client.get("/v1/datasets/gh/refs/main")
                if answer.status_code == 200:
                    assert answer.json()["digest"] == mine
                    seen["200"] += 1
                else:
                    seen["refused"] += 1
                client.put(
                    "/v1/datasets/gh/refs/planted",
                    json={"digest": mine},
                    headers={"If-None-Match": "*"},
                )
                if min(seen.values()) >= 30:
                    break
    assert min(seen.values()) >= 30, "the race was not run"
    assert touched(teams.secret) == before


@pytest.fixture
def inputs(teams: Teams) -> Path:
    """Raw files outside of every root."""
    write_synthetic(teams.home / "outside", 3, seed=0)
    return teams.home / "outside"


def _submit(client: httpx.Client, path: Path, **changes: object) -> httpx.Response:
    body = {"dataset": "gh", "input_uri": str(path), "ref": None, "executor": "local"}
    return client.post("/v1/jobs", json=body | {"workers": 1} | changes)


def test_an_input_is_asked_about_again_when_its_job_runs(
    teams: Teams, inputs: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path itself, folders and files in it, and what `retry` asks is what `submit` asks."""
    raw = teams.home / "raw"
    with open_client(teams.base, teams.text) as client:
        uri = str(teams.home / "team" / "out")
        assert client.post("/v1/datasets", json={"name": "gh", "uri": uri}).status_code == 201
        whole = _submit(client, raw / "later")
        assert whole.status_code == 202
        (raw / "later").symlink_to(inputs)
        assert _submit(client, raw / "later").status_code == 403, "a fresh one is refused"
        (raw / "inside").mkdir()
        for folder in inputs.iterdir():  # alignments, mmcif, ...
            (raw / "inside" / folder.name).symlink_to(folder)
        parts = _submit(client, raw / "inside", max_broken=1.0)
        assert parts.status_code == 202
        work_off(start, monkeypatch)
        for job_id in (whole.json()["id"], parts.json()["id"]):
            job = client.get(f"/v1/jobs/{job_id}").json()
            assert job["state"] == "failed" or not job["result"]["num_good"], job
        assert client.post(f"/v1/jobs/{whole.json()['id']}/retry").status_code == 403
        uploads = {p.suffix for p in (teams.home / "team").rglob("*") if p.is_file()}
        assert ".arrow" not in uploads, "nothing from outside was featurized"


def test_no_other_module_opens_what_a_client_names() -> None:
    """Of files of its own a service opens its database, jobs' logs and what pages load."""
    opening = {
        "open", "open_storage", "open_input", "LocalStorage", "Dataset", "DatasetWriter",
        "read_bytes", "read_text", "write_bytes", "write_text", "glob", "iterdir", "scandir",
    }  # fmt: skip
    room, found = Path(evofeed.service.__file__).parent, dict[str, set[str]]()
    for path in room.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name == "Clusters":
                assert "closed" in {word.arg for word in node.keywords}, path
            elif name in opening:
                found.setdefault(str(path.relative_to(room)), set()).add(name)
    assert {name for name in found if not name.startswith("client/")} == {
        "access/places.py",
        "database/database.py",
        "jobs/scheduler.py",
        "pages/home.py",
    }


def test_retry_asks_what_submit_asks(
    teams: Teams, inputs: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs.rename(teams.home / "raw" / "a")
    with open_client(teams.base, teams.text) as client:
        uri = str(teams.home / "team" / "out")
        client.post("/v1/datasets", json={"name": "gh", "uri": uri})
        job = _submit(client, teams.home / "raw" / "a").json()
        work_off(start, monkeypatch)
        state = client.get(f"/v1/jobs/{job['id']}").json()["state"]
        assert state == "succeeded", "inputs below the roots are read as ever"
        with open_client(teams.base, teams.narrow) as other:
            assert _submit(other, teams.home / "raw" / "a").status_code == 403
            assert other.post(f"/v1/jobs/{job['id']}/retry").status_code == 403
        again = f"/v1/jobs/{job['id']}/retry"
        narrower = (({"job_memory": 1 << 30}, "beyond_limit"), ({"max_jobs": 0}, "no_jobs"))
        for limits, code in narrower:  # what the operator allows since
            changed = start.settings[-1].model_copy(update=limits | {"datasets": {}})
            with serving(changed) as url, open_client(url, teams.text) as later:
                assert later.post(again).json()["code"] == code


def test_clusters_are_read_where_they_were_named(teams: Teams) -> None:
    """A policy's file is read whenever a ref moves, and may be anybody's link by then."""
    outside = teams.home / "outside" / "clusters"
    outside.write_text("0000_A 0001_A\n")
    named = teams.home / "raw" / "clusters"
    named.write_text("0000_A\n0001_A\n0002_A\n")
    with open_client(teams.base, teams.everybody) as client:
        apart = {"dataset": "secret", "ref": "main", "clusters": str(named)}
        ref = "/v1/datasets/secret/refs/next"
        with open_client(teams.base, teams.admin) as admin:
            assert admin.put(f"{ref}/policy", json={"apart_from": [apart]}).status_code == 200

        def move() -> httpx.Response:
            return client.put(ref, json={"digest": teams.digest}, headers={"If-None-Match": "*"})

        assert move().json()["code"] == "not_apart"
        named.unlink()
        named.symlink_to(outside)
        refused = move()
        assert refused.status_code == 422 and "leads out" in refused.json()["detail"], refused.text


def test_no_second_name_leads_to_a_dataset(start_any: Start, folder, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").symlink_to(folder[0])
    client = start_any(
        auth="on",
        datasets={"secret": str(tmp_path / "secret")},
        dataset_roots=(str(tmp_path), str(folder[0].parent)),
    )
    _, text = create_token(start_any.database(), label="x", scopes=["read", "publish"])
    with open_client(str(client.base_url), text) as any_dataset:
        for alias in (
            str(tmp_path / "secret"),
            f"file://{tmp_path}/secret/",
            str(tmp_path / "link"),
            str(folder[0]),
            f"{folder[0]}/snapshots",
            str(folder[0].parent),
            f"{tmp_path}//secret",
        ):
            answer = any_dataset.post("/v1/datasets", json={"name": "mine", "uri": alias})
            assert (answer.status_code, answer.json()["code"]) == (409, "place_taken"), alias
        same = any_dataset.post(
            "/v1/datasets", json={"name": "secret", "uri": str(tmp_path / "link")}
        )
        assert same.status_code == 200
        listed = any_dataset.get("/v1/datasets").json()["datasets"]
    assert {one["name"] for one in listed} == {"secret"}


def test_a_token_registers_only_below_its_own_roots(start: Start, tmp_path: Path) -> None:
    client = start(auth="on", dataset_roots=(str(tmp_path),), input_roots=(str(tmp_path),))
    database = start.database()
    base = str(client.base_url)

    def status(text: str, uri: Path | str) -> int:
        with open_client(base, text) as own:
            name = Path(uri).name
            return own.post("/v1/datasets", json={"name": name, "uri": str(uri)}).status_code

    named = create_token(database, label="x", scopes=["publish"], datasets=["a", "b"])[1]
    assert status(named, tmp_path / "a") == 403, "its list of names opens no place"
    rooted = create_token(
        database, label="x", scopes=["publish", "admin", "jobs"], roots=[str(tmp_path / "team")]
    )[1]
    assert status(rooted, tmp_path / "team" / "a") == 201
    assert status(rooted, tmp_path / "other") == 403
    with open_client(base, rooted) as own:
        job = {"dataset": "a", "input_uri": str(tmp_path / "raw"), "ref": None}
        assert own.post("/v1/jobs", json=job).status_code == 403
        new = {"label": "y", "scopes": ["publish"], "roots": [str(tmp_path)]}
        assert own.post("/v1/tokens", json=new).status_code == 403
        made = own.post("/v1/tokens", json=new | {"roots": None}).json()["token"]
    assert status(made, tmp_path / "b") == 403, "what it makes inherits its roots"


NO_PLACES = [
    "s3://bucket/a//b", "s3://bucket/./x", "s3:///x", "s3://", "s3://b/a/../c", "http://h/x",
    "ftp://x/y", "javascript:alert(1)", "file:relative", "file://host", "relative", "../up", "",
    "\x00", f"/{'x' * 256}", "/" + "a/" * 1600,
]  # fmt: skip


def test_what_is_no_place_is_refused_when_it_is_named(start: Start) -> None:
    client = start()
    for uri in NO_PLACES:
        answer = client.post("/v1/datasets", json={"name": "x", "uri": uri})
        assert answer.status_code == 422, (uri, answer.text)
        if "\x00" not in uri:
            with pytest.raises(Problem):
                canonical_place(uri)
    assert client.get("/v1/datasets").json()["datasets"] == []
