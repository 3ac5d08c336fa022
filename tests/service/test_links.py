"""Links to shards that a real nginx serves by itself: what they open, and all they do not."""

from __future__ import annotations

import datetime
import hashlib
import http.client
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from pydantic import SecretStr
from tests.bucket import local_bucket
from tests.loader.records import small_dataset
from tests.loader.streams import open_loader, sample_digests
from tests.service.conftest import Start, open_client, publish
from tests.service.front import SECRET, in_front
from tests.service.test_caching import caching_proxy

from evofeed.errors import ServiceError
from evofeed.service import ServiceSettings
from evofeed.service.access.auth import create_token, revoke_token
from evofeed.service.database.database import Database
from evofeed.service.snapshots.links import Links
from evofeed.store import Dataset, links
from evofeed.store.http import HttpStorage

BASE = "/v1/datasets/demo"


class Front:
    """Two guarded datasets behind nginx, and a token for the first of them."""

    def __init__(self, start: Start, tmp_path: Path, folder: Path, stack: ExitStack) -> None:
        self.folder, self.links, self.stack = tmp_path / "demo", tmp_path / "links", stack
        shutil.copytree(folder, self.folder)
        publish(tmp_path / "other", range(3))
        self.behind = start(
            auth="on",
            links=self.links,
            link_secret=SecretStr(f"set $evofeed_secret {SECRET};\n"),
            datasets={"demo": str(self.folder), "other": str(tmp_path / "other")},
        )
        self.database = start.database()
        self.url = stack.enter_context(in_front(self.behind.base_url, tmp_path / "nginx"))
        self.token_id, self.token = self.make_token(datasets=["demo"])
        self.client = stack.enter_context(open_client(self.url, self.token))
        self.nobody = stack.enter_context(httpx.Client(timeout=300))
        self.shards = [entry.name for entry in Dataset.open(self.folder).manifest.shards]

    def make_token(self, **options: Any) -> tuple[str, str]:
        return create_token(self.database, label="x", scopes=["read"], **options)

    def ask(self, name: str = "demo", **options: Any) -> dict[str, Any]:
        """Links to all shards of a dataset."""
        client = options.pop("client", self.client)
        shards = options.pop("shards", self.shards)
        answer = client.post(f"/v1/datasets/{name}/urls", json={"shards": shards}, **options)
        assert answer.status_code == 200, answer.text
        said: dict[str, Any] = answer.json()
        return said

    def link(self) -> str:
        return str(self.ask()["urls"][0]["url"])

    def served(self) -> int:
        """Shard requests that the service itself has answered."""
        return counted(self.behind, self.database, "get_shard")


def counted(service: httpx.Client, database: Database, endpoint: str) -> int:
    """Requests that an endpoint of the service has answered."""
    token = create_token(database, label="a", scopes=["read", "admin"])[1]
    answer = service.get("/metrics", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200
    found = re.findall(rf'_requests_total{{endpoint="{endpoint}".* ([0-9.]+)', answer.text)
    return sum(int(float(count)) for count in found)


@pytest.fixture
def front(start: Start, tmp_path: Path, folder) -> Iterator[Front]:
    with ExitStack() as stack:
        yield Front(start, tmp_path, folder[0], stack)


def test_a_link_leads_to_the_bytes_without_a_token_and_without_the_service(front: Front) -> None:
    said = front.ask()
    assert [item["shard"] for item in said["urls"]] == front.shards
    for item in said["urls"]:
        answer = front.nobody.get(item["url"])
        assert answer.status_code == 200, answer.text
        assert hashlib.sha256(answer.content).hexdigest() == item["sha256"]
        assert answer.headers["etag"] == f'"{item["sha256"]}"'
        assert answer.headers["cache-control"] == "private, max-age=31536000, immutable"
        assert answer.headers["content-type"] == "application/vnd.apache.arrow.file"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert str(front.folder.parent) not in item["url"] and "demo" not in item["url"]
    assert front.served() == 0
    assert front.client.get(f"{BASE}/shards/{front.shards[0]}").status_code == 200
    assert front.served() == 1
    admin = {"Authorization": f"Bearer {_admin(front)}"}
    lines = front.behind.get("/v1/audit", headers=admin).json()["lines"]
    (line,) = [line for line in lines if line["action"] == "shards.sign"]
    assert (line["principal"], line["subject"]) == (front.token_id, "demo")
    assert line["detail"] == {"count": len(front.shards), "seconds": 900}


def _admin(front: Front) -> str:
    return create_token(front.database, label="a", scopes=["read", "admin"])[1]


def test_ranges_heads_and_known_tags_are_answered_as_the_service_answers_them(
    front: Front,
) -> None:
    url, direct = front.link(), f"{BASE}/shards/{front.shards[0]}"
    whole = front.nobody.get(url).content
    tag = front.nobody.head(url).headers["etag"]
    for headers in (
        {},
        {"Range": "bytes=10-19"},
        {"Range": "bytes=10-"},
        {"Range": "bytes=-7"},
        {"Range": f"bytes=5-{len(whole) + 5}"},
        {"Range": "bytes=0-1,4-5"},
        {"Range": f"bytes={len(whole)}-"},
        {"Range": "bytes=10-19", "If-Range": tag},
        {"Range": "bytes=10-19", "If-Range": '"another"'},
        {"If-None-Match": tag},
        {"If-None-Match": '"another"'},
        {"Range": "bytes=10-19", "If-None-Match": tag},
    ):
        for method in ("GET", "HEAD"):
            mine = front.nobody.request(method, url, headers=headers)
            theirs = front.client.request(method, direct, headers=headers)
            assert mine.status_code == theirs.status_code, headers
            assert mine.headers.get("content-range") == theirs.headers.get("content-range")
            if mine.status_code < 400:
                assert mine.content == theirs.content, headers
                for name in ("etag", "cache-control"):
                    assert mine.headers[name] == theirs.headers[name], (name, headers)


def test_a_link_opens_what_it_was_signed_for_and_nothing_else(front: Front) -> None:
    url = front.link()
    parts = urlsplit(url)
    word, shard = parts.path.split("/")[2:]
    admin = {"Authorization": f"Bearer {_admin(front)}"}
    theirs = front.ask("other", shards=_shards(front, "other"), headers=admin)["urls"][0]["url"]
    other_word, other_shard = urlsplit(theirs).path.split("/")[2:]
    expires, signature = (pair.partition("=")[2] for pair in parts.query.split("&"))
    later = int(expires) + 60

    def path(word: str = word, shard: str = shard, query: str = parts.query) -> str:
        return f"{front.url}/_links/{word}/{shard}?{query}"

    assert front.nobody.get(path()).status_code == 200
    for altered in (
        path(shard=front.shards[1]),  # the same dataset's, not this one
        path(word=other_word, shard=other_shard),
        path(word=other_word),
        path(query=f"expires={later}&signature={signature}"),
        path(query=f"expires=0{expires}&signature={signature}"),
        path(query=f"expires=+{expires}&signature={signature}"),
        path(query=f"expires={expires}&signature={signature[:-1]}"),
        path(query=f"expires={expires}&signature={signature[::-1]}"),
        path(query=f"expires={expires}&signature={signature},{later}"),
        path(query=f"expires={later}&expires={expires}&signature={signature}"),
        path(query=f"expires={expires}"),
        path(query=f"signature={signature}"),
        path(query=f"expires={expires}&signature="),
        path(query=""),
        path(shard=f"../../{other_word}/shards/{other_shard}"),
        path(shard=f"..%2f{other_word}%2f{other_shard}"),
        path(shard=f"%2e%2e/{other_word}/{other_shard}"),
        path(shard=f"{shard}%00.arrow"),
        path(shard=f"{shard}%0a"),
        path(shard=f"{shard}/"),
        path(shard=shard.upper()),
        path(word="..", shard="refs/main"),
        path(word=f"{word}/..", shard=f"{other_word}/{other_shard}"),
        path(word="", shard=""),
        path(word="", shard=shard),
    ):
        status = _raw(front.url, altered)
        assert status in (400, 403, 404), (altered, status)
    for other_spelling in (
        path(word=f"%{ord(word[0]):02x}{word[1:]}"),
        path(word=f"/{word}"),
        path(word=f"./{word}"),
        path(word=f"x/../{word}"),
    ):
        assert _raw(front.url, other_spelling) == 200, "another spelling of the same shard"
    for method in ("POST", "PUT", "DELETE", "PATCH", "PROPFIND", "OPTIONS"):
        assert front.nobody.request(method, url).status_code == 405, method
    for index in (f"{front.url}/_links/{word}/", f"{front.url}/_links/", f"{front.url}/_links"):
        assert front.nobody.get(index).status_code == 404
    asked = front.client.post(f"{BASE}/urls", json={"shards": [other_shard]})
    assert asked.status_code == 404, "of no snapshot of this dataset"
    denied = front.client.post("/v1/datasets/other/urls", json={"shards": [other_shard]})
    assert denied.status_code == 403, "the token is not for it"


def _raw(base: str, url: str) -> int:
    """The status of a request whose path is sent as it is."""
    connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=60)
    connection.putrequest("GET", url.removeprefix(base))
    connection.endheaders()
    status = connection.getresponse().status
    connection.close()
    return status


def _shards(front: Front, name: str) -> list[str]:
    return [entry.name for entry in Dataset.open(front.folder.parent / name).manifest.shards]


def test_links_end_in_time_and_no_later_than_the_token(front: Front) -> None:
    said = front.ask()
    left = _until(said) - time.time()
    assert 880 < left <= 900
    with open_client(front.url, front.make_token(datasets=["demo"], seconds=100)[1]) as short:
        assert _until(front.ask(client=short)) <= time.time() + 100
    own = Links(front.links, SecretStr(SECRET))
    for seconds, status in ((2, 200), (-1, 403)):
        (path, *_) = own.sign(front.folder, front.shards, seconds) or []
        assert front.nobody.get(front.url + path).status_code == status
        if status == 200:
            time.sleep(3.1)  # nginx' clock has whole seconds
            assert front.nobody.get(front.url + path).status_code == 403
    revoke_token(front.database, front.token_id)
    assert front.client.post(f"{BASE}/urls", json={"shards": front.shards}).status_code == 401
    assert front.nobody.get(said["urls"][0]["url"]).status_code == 200, "until it ends"


def _until(said: dict[str, Any]) -> float:
    return datetime.datetime.fromisoformat(said["expires_at"]).timestamp()


def test_links_to_a_removed_dataset_lead_nowhere(front: Front) -> None:
    url = front.link()
    admin = {"Authorization": f"Bearer {_admin(front)}"}
    assert front.behind.delete(BASE, headers=admin).status_code == 204
    assert front.nobody.get(url).status_code == 404
    again = front.client.post(f"{BASE}/urls", json={"shards": front.shards})
    assert again.status_code == 404
    assert front.nobody.get(url).status_code == 404, "asking did not bring it back"


def test_who_asks_for_links_all_the_time_does_not_fill_the_audit(front: Front) -> None:
    for _ in range(9):
        front.ask()
    admin = {"Authorization": f"Bearer {_admin(front)}"}
    lines = front.behind.get("/v1/audit", headers=admin).json()["lines"]
    assert len([line for line in lines if line["action"] == "shards.sign"]) == 5


def test_what_is_no_file_is_refused_and_not_waited_for(front: Front) -> None:
    urls = {item["shard"]: item["url"] for item in front.ask()["urls"]}
    pipe, place = front.shards[:2]
    for shard in (pipe, place):
        (front.folder / "shards" / shard).unlink()
    os.mkfifo(front.folder / "shards" / pipe)
    (front.folder / "shards" / place).mkdir()
    for shard in (pipe, place):
        answer = front.nobody.get(urls[shard], timeout=20, follow_redirects=True)
        assert answer.status_code == 404


def test_a_symlink_among_the_shards_is_followed_by_the_service_only(front: Front) -> None:
    """Who may write in the folder may publish; nginx' own files are none of that."""
    first, second = front.shards[:2]
    url = {item["shard"]: item["url"] for item in front.ask()["urls"]}
    shards, moved = front.folder / "shards", front.folder.parent / "moved"
    (shards / first).rename(front.folder.parent / first)
    (shards / first).symlink_to(front.folder.parent / first)
    assert front.nobody.get(url[first]).status_code == 403
    assert front.nobody.get(url[second]).status_code == 200
    assert front.client.get(f"{BASE}/shards/{first}").status_code == 200
    shards.rename(moved)
    shards.symlink_to(moved)
    assert front.nobody.get(url[second]).status_code == 404


def test_a_shared_cache_keeps_no_linked_shard(front: Front, tmp_path: Path) -> None:
    path = urlsplit(front.link())
    with caching_proxy(front.url, tmp_path / "cache") as proxy:
        for _ in range(2):
            answer = front.nobody.get(f"{proxy}{path.path}?{path.query}")
            assert (answer.status_code, answer.headers["X-Cache"]) == (200, "MISS")


def test_a_loader_reads_by_links_what_it_reads_from_the_folder(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = small_dataset(tmp_path / "data")
    client = start(
        auth="on", links=tmp_path / "links", link_secret=SecretStr(SECRET),
        datasets={"data": str(tmp_path / "data")},
    )  # fmt: skip
    token = create_token(start.database(), label="x", scopes=["read"])[1]
    monkeypatch.setenv("EVOFEED_TOKEN", token)
    with open_loader(local) as loader:
        wanted = sample_digests(loader)
    with in_front(client.base_url, tmp_path / "nginx") as url:
        remote = Dataset.open(f"{url}/v1/datasets/data")
        with open_loader(remote, reader="process", num_threads=1) as loader:
            assert sample_digests(loader) == wanted
        assert counted(client, start.database(), "get_shard") == 0
        assert counted(client, start.database(), "sign_urls") == 1
        remote.close()


def test_what_links_do_not_give_is_read_from_the_service(front: Front) -> None:
    local, now = Dataset.open(front.folder), [0.0]
    storage = HttpStorage(f"{front.url}{BASE}", front.token, clock=lambda: now[0])
    remote, stats = Dataset.of(storage), storage.links.stats
    word = front.links / urlsplit(front.link()).path.split("/")[2]
    word.unlink()
    word.symlink_to("/nowhere")
    for chain in list(local)[::12]:
        assert remote[chain].msa.tobytes() == local[chain].msa.tobytes()
    assert stats == {"asked": 1, "followed": 0, "failed": 3}
    word.unlink()
    assert remote[0].chain_id and stats["followed"] == 0, "not asked again so soon"
    now[0] += links.PAUSE
    for chain in list(local)[::12]:
        assert remote[chain].msa.tobytes() == local[chain].msa.tobytes()
    assert stats == {"asked": 2, "followed": 4, "failed": 3}
    remote.close()


def test_a_service_without_nginx_is_asked_for_links_once(served) -> None:
    remote = Dataset.open(served.base)
    for chain in list(remote)[::9]:
        assert remote[chain].chain_id == chain
    assert isinstance(remote.storage, HttpStorage)
    assert remote.storage.links.stats == {"asked": 1, "followed": 0, "failed": 0}
    remote.close()


@pytest.mark.slow
def test_presigned_urls_of_a_bucket_are_followed_where_the_reader_allows_it(
    start: Start, folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Dataset.open(folder[0])
    with local_bucket() as bucket:
        client = start(datasets={"demo": bucket.fill(folder[0])})
        for origins, followed in (("", 0), (f"http://x,http://127.0.0.1:{bucket.port}", 4)):
            monkeypatch.setenv("EVOFEED_LINK_ORIGINS", origins)
            monkeypatch.setenv("EVOFEED_TOKEN", "evf_not_for_buckets")
            remote = Dataset.open(f"{client.base_url}{BASE}")
            for chain in list(local)[::12]:
                assert remote[chain].msa.tobytes() == local[chain].msa.tobytes()
            assert isinstance(remote.storage, HttpStorage)
            assert remote.storage.links.stats["followed"] == followed
            remote.close()


def test_links_want_a_secret_and_a_folder_to_write_in(tmp_path: Path, start: Start) -> None:
    with pytest.raises(ServiceError, match="EVOFEED_LINKS needs EVOFEED_LINK_SECRET"):
        start(links=tmp_path / "links")
    (tmp_path / "file").write_text("")
    with pytest.raises(ServiceError, match=r"EVOFEED_LINKS: .*: let the service's user"):
        start(links=tmp_path / "file", link_secret=SecretStr(SECRET))
    for secret in ("short", SECRET.upper(), f"set $other {SECRET};", SECRET + "00"):
        with pytest.raises(ValueError, match=r"want `set \$evofeed_secret HEX;`"):
            ServiceSettings(link_secret=SecretStr(secret))
    for secret in (SECRET, f"set $evofeed_secret {SECRET};\n"):
        assert ServiceSettings(link_secret=SecretStr(secret)).link_secret == SecretStr(SECRET)
