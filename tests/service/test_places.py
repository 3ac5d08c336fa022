"""One place has one name, and a token names no place beyond its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.service.conftest import Start, open_client

from evofeed.base.within import below
from evofeed.service.access.auth import create_token
from evofeed.service.access.places import canonical_place
from evofeed.service.problems import Problem


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
    assert {one["name"] for one in _datasets(client, start_any)} == {"secret"}


def _datasets(client, start: Start) -> list[dict[str, str]]:
    _, text = create_token(start.database(), label="x", scopes=["read"])
    headers = {"Authorization": f"Bearer {text}"}
    found: list[dict[str, str]] = client.get("/v1/datasets", headers=headers).json()["datasets"]
    return found


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
        database,
        label="x",
        scopes=["publish", "admin", "jobs"],
        roots=[str(tmp_path / "team")],
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


def test_below_means_by_whole_names() -> None:
    assert below("/a/b", "/a") and below("/a", "/a") and below("/a", "/")
    assert not below("/ab", "/a") and not below("s3://b/xy", "s3://b/x")
