"""Written over HTTP: shards, snapshots, merges, refs that end; checked, charged and collected."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.conftest import Start, make_record, publish

from evofeed.cli import main
from evofeed.errors import AccessDenied, RefConflict, ServiceError, StoreError
from evofeed.service import Client
from evofeed.service.access.auth import create_token
from evofeed.service.access.quotas import Quotas
from evofeed.service.half_uploads import STALE, collect_stale, folder_of
from evofeed.store import Dataset, DatasetWriter, gc

SCOPES = ["read", "publish", "admin"]


@pytest.fixture
def placed(start_any: Start, folder: Any, tmp_path: Path) -> tuple[httpx.Client, Path, Start]:
    """A service with a copy of the two snapshots (`demo`) and an empty dataset (`out`)."""
    shutil.copytree(folder[0], tmp_path / "copy")
    http = start_any(
        auth="on",
        datasets={"demo": str(tmp_path / "copy"), "out": str(tmp_path / "out")},
        max_upload=1 << 20,
    )
    return http, tmp_path, start_any


def client_of(placed: Any, **options: Any) -> Client:
    http, _, start = placed
    asked = {"label": "x", "scopes": SCOPES} | options
    return Client(str(http.base_url), create_token(start.database(), **asked)[1])


def shard_files(place: Path) -> list[Path]:
    return sorted((place / "shards").glob("*.arrow"))


def test_shards_become_a_snapshot_that_reads_like_one_made_on_disk(placed: Any) -> None:
    _, tmp, _ = placed
    made_here = publish(tmp / "local", range(20))
    files = shard_files(tmp / "local")
    with client_of(placed) as client:
        names = [client.upload_shard("out", path) for path in files]
        assert names == [path.name for path in files]
        assert client.missing_shards("out", [*names, "0" * 64 + ".arrow"]) == ["0" * 64 + ".arrow"]
        made = client.commit(
            "out", names, expect=None, config={"made_by": "a test"}, message="first"
        )
        assert made.digest == made_here, "the same chains and config are the same snapshot"
        with pytest.raises(RefConflict):
            client.commit("out", names, expect=None)
        with pytest.raises(ServiceError, match="say where the ref points"):
            client._send("POST", "/v1/datasets/out/snapshots", {"shards": names})
        ours, theirs = Dataset.open(str(tmp / "local")), client.dataset("out")
        assert list(ours) == list(theirs) and ours["0003_A"].sequence == theirs["0003_A"].sequence
        (move,) = client.history("out")
        assert (move.digest, move.previous, move.message) == (made_here, None, "first")


def test_chains_are_added_and_replaced(placed: Any) -> None:
    _, tmp, _ = placed
    publish(tmp / "more", range(100, 103))
    changed = DatasetWriter(str(tmp / "changed"))
    changed.add(make_record(500).__class__(**(_fields(make_record(500)) | {"chain_id": "0001_A"})))
    changed.commit("main")
    with client_of(placed) as client:
        before = client.ref("demo").digest
        (more,) = shard_files(tmp / "more")
        client.upload_shard("demo", more)
        added = client.commit("demo", [more.name], expect=before, mode="add")
        assert added.num_chains == 48 and added.parent == before
        with pytest.raises(ServiceError, match="0100_A"):
            client.commit("demo", [more.name], expect=added.digest, mode="add")
        (other,) = shard_files(tmp / "changed")
        client.upload_shard("demo", other)
        replaced = client.commit("demo", [other.name], expect=added.digest, mode="replace")
        assert replaced.num_chains == 48
        assert len(client.dataset("demo")["0001_A"].sequence) == len(make_record(500).sequence)
        with pytest.raises(ServiceError, match="needs a ref"):
            client.commit("demo", [more.name], expect=None, mode="add", ref=None)


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def test_what_is_no_shard_or_another_is_refused_and_leaves_nothing(placed: Any) -> None:
    http, tmp, start = placed
    whole = shard_files(tmp / "copy")[0].read_bytes()
    broken = whole[: len(whole) // 2] + bytes(64) + whole[len(whole) // 2 + 64 :]
    token = create_token(start.database(), label="x", scopes=SCOPES)[1]
    http.headers["Authorization"] = f"Bearer {token}"

    def put(data: bytes, name: str = "", **options: Any) -> httpx.Response:
        name = name or f"{hashlib.sha256(data).hexdigest()}.arrow"
        return http.put(f"/v1/datasets/out/shards/{name}", content=data, **options)

    assert put(b"not arrow").json()["code"] == "bad_upload"
    assert put(broken).json()["code"] == "bad_upload"
    assert put(whole[:-9]).json()["code"] == "bad_upload"
    assert put(whole, "0" * 64 + ".arrow").json()["code"] == "digest_mismatch"
    assert put(whole, "shard.arrow").json()["code"] == "bad_upload"
    assert put(b"").json()["code"] == "bad_upload" or put(b"").json()["code"] == "empty_body"
    assert put(bytes((1 << 20) + 1)).status_code == 413
    assert http.put("/v1/datasets/none/shards/" + "0" * 64 + ".arrow").status_code == 404
    assert not (tmp / "out" / "shards").exists()
    home = start.settings[-1].home
    assert list(folder_of(home).glob("*")) == []
    assert http.get("/v1/me").json()["nbytes"] == 0, "what was refused is not charged"
    answer = http.post(
        "/v1/datasets/out/snapshots", json={"shards": ["0" * 64 + ".arrow"]},
        headers={"If-None-Match": "*"},
    )  # fmt: skip
    assert (answer.status_code, answer.json()["code"]) == (409, "shards_missing")


def test_half_an_upload_is_gone_and_what_a_dead_process_left_is_collected(placed: Any) -> None:
    http, _, start = placed
    token = create_token(start.database(), label="x", scopes=SCOPES)[1]
    home = start.settings[-1].home
    with socket.create_connection((http.base_url.host, http.base_url.port)) as raw:
        head = f"PUT /v1/datasets/out/shards/{'0' * 64}.arrow HTTP/1.1\r\nHost: x\r\n"
        head += f"Authorization: Bearer {token}\r\nContent-Length: 900000\r\n\r\n"
        raw.sendall(head.encode() + bytes(300_000))
        _wait_for(lambda: len(list(folder_of(home).glob("*.part"))) == 1)
    _wait_for(lambda: not list(folder_of(home).glob("*.part")))
    left, fresh = folder_of(home) / "dead.part", folder_of(home) / "alive.part"
    left.write_bytes(b"x"), fresh.write_bytes(b"x")
    os.utime(left, (time.time() - STALE - 1,) * 2)
    assert collect_stale(home) == 1 and fresh.exists() and not left.exists()


def test_shards_that_no_snapshot_lists_are_collected_and_those_in_a_commit_are_not(
    placed: Any,
) -> None:
    _, tmp, _ = placed
    publish(tmp / "local", range(12))
    (path,) = shard_files(tmp / "local")
    with client_of(placed) as client:
        client.upload_shard("out", path)
        assert gc(str(tmp / "out"), dry_run=False).removed == ()  # young
        report = gc(str(tmp / "out"), dry_run=False, grace=-1.0)
        assert f"shards/{path.name}" in [item.key for item in report.removed]
        with pytest.raises(ServiceError, match="not there"):
            client.commit("out", [path.name], expect=None)
        client.upload_shard("out", path)
        client.commit("out", [path.name], expect=None)
        assert gc(str(tmp / "out"), dry_run=False, grace=-1.0).removed == ()


def test_a_snapshot_is_pushed_as_it_is_and_again_for_nothing(placed: Any, folder: Any) -> None:
    seen: list[tuple[int, int]] = []
    with client_of(placed) as client:
        made = client.push(folder[0], "out", message="copy", seen=lambda *n: seen.append(n))
        assert made.digest == folder[2] and seen[-1][0] == seen[-1][1] > 1
        used = client._get("/v1/me")["nbytes"]
        seen.clear()
        assert client.push(folder[0], "out").digest == folder[2] and seen == []
        assert client._get("/v1/me")["nbytes"] < 2 * used
        assert client.dataset("out").verify(deep=True) == []
        assert len(list(client.history("out"))) == 1


def test_an_index_that_its_shards_do_not_have_is_refused(placed: Any, folder: Any) -> None:
    from evofeed.store.index import index_bytes
    from evofeed.store.manifest import Manifest

    ours = Dataset.open(folder[0])
    index = ours.index.slice(1)  # a row less is a snapshot of fewer chains
    for table, good in ((index, True), (_shifted(index), False)):
        data = index_bytes(table)
        values = {name: getattr(ours.manifest, name) for name in ("shards", "config", "dropped")}
        manifest = Manifest(
            **values,
            index_sha256=hashlib.sha256(data).hexdigest(),
            index_nbytes=len(data),
            num_chains=len(table),
        )
        body = manifest.to_bytes() + b"\n" + data
        with client_of(placed) as client:
            path = f"/v1/datasets/demo/snapshots/{manifest.digest}"
            if good:
                client._put(path, body)
                for wrong in (body[:-1], body + b"x", body.replace(b"\n", b" ", 1)):
                    with pytest.raises(ServiceError, match=r"bytes|sha256|manifest"):
                        client._put(path, wrong)
            else:
                with pytest.raises(ServiceError, match="are not the shard's"):
                    client._put(path, body)


def _shifted(table: Any) -> Any:
    import pyarrow as pa

    where = table.schema.get_field_index("resolution")
    values = [v + 1.0 for v in table["resolution"].to_pylist()]
    return table.set_column(where, table.schema.field(where), pa.array(values, pa.float32()))


def test_snapshots_are_merged_if_no_chain_differs(placed: Any, tmp_path: Path) -> None:
    publish(tmp_path / "out", range(30, 60))
    with client_of(placed) as client:
        before = client.ref("demo").digest
        made = client.merge("demo", "out", expect=before, message="both")
        assert made.num_chains == 60 and made.parent == before
        assert client.dataset("demo").verify() == []
        with pytest.raises(RefConflict):
            client.merge("demo", "out", expect=before)
        client.move_ref("demo", "old", before, expect=None)
        same = client.merge("demo", "demo", snapshot="old", expect=made.digest)
        assert same.digest == made.digest, "nothing was new"
    with client_of(placed, datasets=["demo"]) as narrow, pytest.raises(AccessDenied, match="out"):
        narrow.merge("demo", "out", expect=made.digest)


def test_a_ref_ends_and_begins_again_and_its_history_has_no_gap(placed: Any) -> None:
    _, tmp, _ = placed
    with client_of(placed) as client:
        main_at = client.ref("demo").digest
        client.move_ref("demo", "v1", main_at, expect=None)
        with pytest.raises(RefConflict):
            client.delete_ref("demo", "v1", expect="0" * 64)
        client.delete_ref("demo", "v1", expect=main_at, message="a mistake")
        assert [ref.name for ref in client.refs("demo")] == ["main"]
        with pytest.raises(ServiceError, match="no ref 'v1'"):
            client.ref("demo", "v1")
        with pytest.raises(RefConflict):
            client.delete_ref("demo", "v1", expect=main_at)
        client.move_ref("demo", "v1", main_at, expect=None)
        moves = list(client.history("demo", "v1"))
        assert [(m.previous, m.digest) for m in moves] == [
            (None, main_at), (main_at, ""), (None, main_at),
        ]  # fmt: skip
        assert moves[1].message == "a mistake"
        client.set_policy("demo", "v1", protected=True)
        assert client.policy("demo", "v1")["protected"] is True
        with pytest.raises(ServiceError, match="protected"):
            client.delete_ref("demo", "v1", expect=main_at)
    assert [ref.name for ref in _refs(tmp / "copy")] == ["main", "v1"]


def _refs(place: Path) -> Any:
    from evofeed.store.inner import list_refs, open_storage

    return list_refs(open_storage(str(place)))


def test_a_ref_that_was_deleted_past_the_service_is_missed_in_its_history(placed: Any) -> None:
    _, tmp, _ = placed
    from evofeed.store.inner import delete_ref, open_storage

    with client_of(placed) as client:
        at = client.ref("demo").digest
        delete_ref(open_storage(str(tmp / "copy")), "main", at)
        client.move_ref("demo", "main", at, expect=None)
        moves = [(m.previous, m.digest, m.principal) for m in client.history("demo")]
        assert moves[1] == (at, "", "store") and moves[0][:2] == (None, at)


def test_a_ref_is_not_deleted_by_what_is_no_digest(placed: Any) -> None:
    http, _, start = placed
    text = create_token(start.database(), label="w", scopes=["publish"])[1]
    with client_of(placed) as client:
        at = client.ref("demo").digest
        for tag in ("0" * 198, "x", ""):
            head = {"If-Match": f'"{tag}"', "Authorization": f"Bearer {text}"}
            answer = http.delete("/v1/datasets/demo/refs/main", headers=head)
            assert answer.status_code == 412, answer.text
        assert client.ref("demo").digest == at


def test_policies_and_scopes_hold_for_commits(placed: Any) -> None:
    http, _, start = placed
    with client_of(placed) as client:
        names = [entry.name for entry in client.dataset("demo").manifest.shards]
        at = client.ref("demo").digest
        client.set_policy("demo", "main", forbid=[{"column": "num_res", "op": ">", "value": 100}])
        with pytest.raises(ServiceError, match="pass forbid"):
            client.commit("demo", names, expect=at)
        client.set_policy("demo", "main", protected=True)
        for write in (client.commit, client.merge):
            what = names if write is client.commit else "demo"
            with pytest.raises(ServiceError, match="protected"):
                write("demo", what, expect=at)  # type: ignore[operator]
        made = client.commit("demo", names, expect=None, ref=None)
        assert made.ref is None and client.ref("demo").digest == at
    reader = create_token(start.database(), label="r", scopes=["read", "jobs"])[1]
    head = {"Authorization": f"Bearer {reader}"}
    for method, path in (
        ("PUT", f"shards/{names[0]}"), ("POST", "snapshots"), ("POST", "merge"),
        ("DELETE", "refs/main"), ("POST", "missing-shards"), ("PUT", f"snapshots/{at}"),
    ):  # fmt: skip
        answer = http.request(method, f"/v1/datasets/demo/{path}", headers=head)
        assert answer.status_code == 403, (method, path)


def test_uploads_are_charged_to_a_token_and_its_makers(placed: Any) -> None:
    _, tmp, _ = placed
    files = shard_files(tmp / "copy")
    room = sum(path.stat().st_size for path in files[:2])
    with client_of(placed, quotas=Quotas(max_bytes=room)) as client:
        client.upload_shard("out", files[0])
        _, child = client.create_token("child", ["publish"], max_bytes=room)
        with Client(client.url, child) as other:
            other.upload_shard("out", files[1])
            with pytest.raises(StoreError, match="may send"):  # at once: it would be for an hour
                other.upload_shard("out", files[2])
        assert client._get("/v1/me")["nbytes"] == room


def test_when_a_snapshot_was_written_does_not_change_with_its_files(placed: Any) -> None:
    _, tmp, _ = placed
    with client_of(placed) as client:

        def times() -> dict[str, str]:
            said = client._get("/v1/datasets/demo/snapshots")["snapshots"]
            return {one["digest"]: one["written_at"] for one in said}

        before = times()
        for path in (tmp / "copy" / "snapshots").glob("*/manifest.json"):
            os.utime(path, (4e9, 4e9))  # a copy, a restore, a job that writes it again
        assert times() == before


def test_the_command_line_pushes_tags_merges_and_deletes(
    placed: Any, folder: Any, capsys: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    client = client_of(placed)
    monkeypatch.setenv("EVOFEED_TOKEN", client._token)

    def run(*words: str) -> str:
        with pytest.raises(SystemExit) as done:
            main(["--service", client.url, "snapshots", *words])
        out = capsys.readouterr()
        assert done.value.code == 0, out.err
        return out.out

    assert folder[2] in run("push", str(folder[0]), "out", "--message", "copy")
    assert folder[2] in run("tag", "out", "v1")
    assert "v1" in run("refs", "out")
    assert "copy" in run("history", "out")
    assert "45 chains" in run("merge", "out", "demo")
    assert "deleted" in run("rm-ref", "out", "v1") and "v1" not in run("refs", "out")
    assert "(deleted)" in run("history", "out", "v1")


def _wait_for(claim: Any) -> None:
    end = time.monotonic() + 60
    while not claim():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
