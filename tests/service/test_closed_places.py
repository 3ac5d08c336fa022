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
from tests.service.conftest import Start, publish
from tests.store.test_closed_folders import swapping, touched

import evofeed.service
from evofeed.service import serving
from evofeed.synth import write_synthetic

NEW = {"If-None-Match": "*"}


class Teams:
    """Two teams under one root, and the client of one of them."""

    def __init__(self, start: Start, home: Path) -> None:
        self.home, self.secret = home, home / "secret"
        self.digest = publish(self.secret, range(3))
        for name in ("team", "raw", "outside"):
            (home / name).mkdir()
        start(
            auth="on",
            datasets={"secret": str(self.secret)},
            dataset_roots=(str(home), "s3://"),
            input_roots=(str(home / "raw"),),
        )
        scopes, team = ("read", "publish", "jobs"), [str(home / "team"), str(home / "raw")]
        self.text = start.token(*scopes, datasets=["gh"], roots=team)
        self.client = start.client(self.text)
        self.narrow = start.as_(*scopes, roots=team[:1])
        self.everybody, self.admin = start.as_(*scopes), start.as_("admin")

    def register(self, place: Path) -> None:
        made = self.client.post("/v1/datasets", json={"name": "gh", "uri": str(place)})
        assert made.status_code == 201, made.text


@pytest.fixture
def teams(start: Start, tmp_path: Path, jobs_wait: None) -> Teams:
    return Teams(start, tmp_path.resolve())


def test_a_link_made_after_registration_leads_to_no_other_dataset(teams: Teams) -> None:
    ghost, client, base = teams.home / "team" / "ghost", teams.client, "/v1/datasets/gh"
    teams.register(ghost)
    ghost.symlink_to(teams.secret)
    before = touched(teams.secret)
    snapshot, shard = f"snapshots/{teams.digest}", next((teams.secret / "shards").iterdir()).name
    paths = [
        "refs/main", "refs", "snapshots", "chains?ref=main", snapshot, f"{snapshot}/index",
        f"shards/{shard}", f"{snapshot}/chains/0000_A",
    ]  # fmt: skip
    for method, path in [*(("GET", path) for path in paths), ("DELETE", "refs/main")]:
        headers = {"If-Match": f'"{teams.digest}"'}
        answer = client.request(method, f"{base}/{path}", headers=headers)
        assert answer.status_code in (404, 502, 503), (path, answer.text)
        assert teams.digest not in answer.text.replace(path, "")
    planted = client.put(f"{base}/refs/planted", json={"digest": teams.digest}, headers=NEW)
    assert planted.status_code in (404, 502, 503)
    ghost.unlink()
    ghost.mkdir()  # the folder is ours, what is in it is theirs
    for name in ("refs", "shards", "snapshots"):
        (ghost / name).symlink_to(teams.secret / name)
    for path in ("refs/main", f"shards/{shard}"):
        assert client.get(f"{base}/{path}").status_code in (404, 502, 503)
    assert touched(teams.secret) == before


def test_links_swapped_while_requests_run_show_nothing_of_another_dataset(teams: Teams) -> None:
    ours, link = teams.home / "team" / "ours", teams.home / "team" / "link"
    mine = publish(ours, range(10, 12))
    link.symlink_to(teams.secret)
    before, seen = touched(teams.secret), {"200": 0, "refused": 0}
    teams.register(ours)
    with swapping(link, ours):
        for _ in range(3000):
            answer = teams.client.get("/v1/datasets/gh/refs/main")
            if answer.status_code == 200:
                assert answer.json()["digest"] == mine
            seen["200" if answer.status_code == 200 else "refused"] += 1
            planted = "/v1/datasets/gh/refs/planted"
            teams.client.put(planted, json={"digest": mine}, headers=NEW)
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
    teams: Teams, inputs: Path, start: Start
) -> None:
    """The path itself, folders and files in it, and what `retry` asks is what `submit` asks."""
    raw, client = teams.home / "raw", teams.client
    teams.register(teams.home / "team" / "out")
    whole = _submit(client, raw / "later")
    assert whole.status_code == 202
    (raw / "later").symlink_to(inputs)
    assert _submit(client, raw / "later").status_code == 403, "a fresh one is refused"
    (raw / "inside").mkdir()
    for folder in inputs.iterdir():  # alignments, mmcif, ...
        (raw / "inside" / folder.name).symlink_to(folder)
    parts = _submit(client, raw / "inside", max_broken=1.0)
    assert parts.status_code == 202
    start.work_off()
    for job_id in (whole.json()["id"], parts.json()["id"]):
        job = client.get(f"/v1/jobs/{job_id}").json()
        assert job["state"] == "failed" or not job["result"]["num_good"], job
    assert client.post(f"/v1/jobs/{whole.json()['id']}/retry").status_code == 403
    uploads = {p.suffix for p in (teams.home / "team").rglob("*") if p.is_file()}
    assert ".arrow" not in uploads, "nothing from outside was featurized"


def test_no_other_module_opens_what_a_client_names() -> None:
    """A service opens its database, jobs' logs, what pages load, and looks for its searches'."""
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
        "pages/listings.py",
        "settings.py",
    }


def test_retry_asks_what_submit_asks(teams: Teams, inputs: Path, start: Start) -> None:
    inputs.rename(teams.home / "raw" / "a")
    teams.register(teams.home / "team" / "out")
    job = _submit(teams.client, teams.home / "raw" / "a").json()
    again = f"/v1/jobs/{job['id']}/retry"
    start.work_off()
    state = teams.client.get(f"/v1/jobs/{job['id']}").json()["state"]
    assert state == "succeeded", "inputs below the roots are read as ever"
    assert _submit(teams.narrow, teams.home / "raw" / "a").status_code == 403
    assert teams.narrow.post(again).status_code == 403
    narrower = (({"job_memory": 1 << 30}, "beyond_limit"), ({"max_jobs": 0}, "no_jobs"))
    for limits, code in narrower:  # what the operator allows since
        with serving(start.settings[-1].model_copy(update=limits | {"datasets": {}})) as url:
            later = httpx.post(f"{url}{again}", headers=teams.client.headers, timeout=300)
            assert later.json()["code"] == code


def test_clusters_are_read_where_they_were_named(teams: Teams) -> None:
    """A policy's file is read whenever a ref moves, and may be anybody's link by then."""
    outside, named = teams.home / "outside" / "clusters", teams.home / "raw" / "clusters"
    outside.write_text("0000_A 0001_A\n")
    named.write_text("0000_A\n0001_A\n0002_A\n")
    apart = {"dataset": "secret", "ref": "main", "clusters": str(named)}
    ref = "/v1/datasets/secret/refs/next"
    assert teams.admin.put(f"{ref}/policy", json={"apart_from": [apart]}).status_code == 200

    def move() -> httpx.Response:
        return teams.everybody.put(ref, json={"digest": teams.digest}, headers=NEW)

    assert move().json()["code"] == "not_apart"
    named.unlink()
    named.symlink_to(outside)
    refused = move()
    assert refused.status_code == 422 and "leads out" in refused.json()["detail"], refused.text


def test_no_second_name_leads_to_a_dataset(start: Start, folder, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").symlink_to(folder[0])
    start(
        auth="on",
        datasets={"secret": str(tmp_path / "secret")},
        dataset_roots=(str(tmp_path), str(folder[0].parent)),
    )
    client = start.as_("read", "publish")
    for alias in (
        f"{tmp_path}/secret", f"file://{tmp_path}/secret/", f"{tmp_path}/link", str(folder[0]),
        f"{folder[0]}/snapshots", str(folder[0].parent), f"{tmp_path}//secret",
    ):  # fmt: skip
        answer = client.post("/v1/datasets", json={"name": "mine", "uri": alias})
        assert (answer.status_code, answer.json()["code"]) == (409, "place_taken"), alias
    same = client.post("/v1/datasets", json={"name": "secret", "uri": str(tmp_path / "link")})
    assert same.status_code == 200
    listed = client.get("/v1/datasets").json()["datasets"]
    assert {one["name"] for one in listed} == {"secret"}


def test_a_token_registers_only_below_its_own_roots(start: Start, tmp_path: Path) -> None:
    start(auth="on", dataset_roots=(str(tmp_path),), input_roots=(str(tmp_path),))

    def status(client: httpx.Client, place: str) -> int:
        new = {"name": Path(place).name, "uri": str(tmp_path / place)}
        return client.post("/v1/datasets", json=new).status_code

    named = start.as_("publish", datasets=["a", "b"])
    assert status(named, "a") == 403, "its list of names opens no place"
    rooted = start.as_("publish", "admin", "jobs", roots=[str(tmp_path / "team")])
    assert (status(rooted, "team/a"), status(rooted, "other")) == (201, 403)
    job = {"dataset": "a", "input_uri": str(tmp_path / "raw"), "ref": None}
    assert rooted.post("/v1/jobs", json=job).status_code == 403
    new = {"label": "y", "scopes": ["publish"], "roots": [str(tmp_path)]}
    assert rooted.post("/v1/tokens", json=new).status_code == 403
    made = rooted.post("/v1/tokens", json=new | {"roots": None}).json()["token"]
    assert status(start.client(made), "b") == 403, "what it makes inherits its roots"
