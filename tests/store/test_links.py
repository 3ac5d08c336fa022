"""Links to shards, from a service that gives good ones, bad ones and none."""

from __future__ import annotations

import datetime
import json
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from tests.store.records import assert_same, published, random_record
from tests.store.test_http import Service, served

from evofeed.store import Cache, Dataset, copy_dataset, links
from evofeed.store.http import HttpStorage

CHAINS = 4


class Linking(Service):
    """The toy service with links: `said` answers who asks for them, if it is not None."""

    said, bad, asked, linked, seconds, ahead = None, None, [], [], 900, 0.0

    def do_POST(self):  # noqa: N802
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["shards"]
        self.asked.append((self.path, wanted, self.headers.get("Authorization")))
        if self.said is not None:
            return self.answer(*self.said)
        return self.answer(200, json.dumps(self.links(wanted)).encode())

    def links(self, wanted):
        now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=self.ahead)
        ends = now + datetime.timedelta(seconds=self.seconds)
        urls = [
            {"shard": shard, "url": f"http://{self.host()}/links/{shard}?s=1"} for shard in wanted
        ]
        return {"urls": urls, "expires_at": ends.isoformat()}

    def host(self):
        return self.headers["Host"]

    def date_time_string(self, timestamp=None):
        return super().date_time_string(self.now() if timestamp is None else timestamp)

    def now(self):
        return datetime.datetime.now(datetime.UTC).timestamp() + self.ahead

    def do_GET(self):  # noqa: N802
        if self.path.startswith("/links/"):
            self.linked.append((self.path, self.headers.get("Authorization")))
            self.path = "/v1/datasets/toy/shards/" + self.path.removeprefix("/links/")[:-4]
            if self.bad is not None:
                return self.bad()
        return super().do_GET()


@pytest.fixture
def service(tmp_path, monkeypatch):
    monkeypatch.setenv("EVOFEED_TOKEN", "evf_secret")
    published(tmp_path / "toy", map(random_record, range(CHAINS)), shard_nbytes=1)
    fresh = {name: [] for name in ("faults", "seen", "asked", "linked")}
    handler = type("Toy", (Linking,), {"root": tmp_path / "toy", **fresh})
    with served(handler) as url:
        handler.url = f"{url}/v1/datasets/toy"
        yield handler


class Clock:
    """Seconds, put forward by hand."""

    def __init__(self):
        self.now = 1e6

    def __call__(self):
        return self.now


def opening(service, clock=time.monotonic):
    return Dataset.of(HttpStorage(service.url, first_wait=0.001, clock=clock))


def read_all(dataset):
    for seed in range(CHAINS):
        assert_same(dataset[f"chain{seed}_A"], random_record(seed))
    return dataset.storage.links.stats


def stats(asked, followed, failed):
    return {"asked": asked, "followed": followed, "failed": failed}


def test_links_are_asked_for_once_in_batches_and_followed_without_the_token(service, monkeypatch):
    monkeypatch.setattr(links, "BATCH", 3)
    with opening(service) as dataset:
        names = [entry.name for entry in dataset.manifest.shards]
        assert read_all(dataset) == stats(2, CHAINS, 0)
        assert read_all(dataset) == stats(2, 2 * CHAINS, 0)
        assert [token for *_, token in service.asked] == ["Bearer evf_secret"] * 2
        assert sorted(wanted for _, wanted, _ in service.asked) == sorted([names[:3], names[3:]])
        assert {token for _, token in service.linked} == {None}
        assert len(service.linked) == 2 * CHAINS
        again = pickle.loads(pickle.dumps(dataset.storage))
        assert again.links.shards == tuple(names) and not again.links._known


def test_a_cache_and_a_copy_fill_by_links(service, tmp_path):
    dataset = Dataset.open(service.url, cache=Cache(folder=str(tmp_path / "cache")))
    for seed in range(CHAINS):
        assert_same(dataset[f"chain{seed}_A"], random_record(seed))
    assert dataset.storage.remote.links.stats["followed"] == CHAINS
    dataset.close()
    before = len(service.linked)
    copy_dataset(service.url, tmp_path / "copy")
    assert len(service.linked) == before + CHAINS
    assert Dataset.open(tmp_path / "copy").verify(deep=True) == []


@pytest.mark.parametrize("ahead", [-86_400.0, 0.0, 86_400.0])
def test_links_last_as_long_as_the_service_says_by_its_own_clock(service, ahead):
    service.ahead, clock = ahead, Clock()
    with opening(service, clock) as dataset:
        assert read_all(dataset) == stats(1, CHAINS, 0)
        clock.now += 530
        assert read_all(dataset) == stats(1, 2 * CHAINS, 0)
        clock.now += 200
        assert read_all(dataset) == stats(2, 3 * CHAINS, 0)


def problem(status):
    return status, b'{"detail": "no"}'


def saying(values):
    return 200, values if isinstance(values, bytes) else json.dumps(values).encode()


SOON = "2999-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    "said",
    [
        *map(problem, (403, 404, 429)), saying(b"<html>"), saying([]),
        saying({"urls": [{"shard": [], "url": "x"}], "expires_at": SOON}),
        saying({"urls": [], "expires_at": "2999-01-01T00:00:00"}),
        saying({"urls": [], "expires_at": "1999-01-01T00:00:00+00:00"}),
    ],
)  # fmt: skip
def test_a_service_that_gives_no_links_is_read_as_before_and_left_alone_for_a_while(service, said):
    service.said, clock = said, Clock()
    with opening(service, clock) as dataset:
        assert read_all(dataset) == stats(1, 0, 0)
        clock.now += links.PAUSE
        assert read_all(dataset) == stats(2, 0, 0)
    assert not service.linked


def test_links_that_never_end_are_never_asked_for_again(service):
    service.said, clock = saying({"urls": [], "expires_at": None}), Clock()
    with opening(service, clock) as dataset:
        for _ in range(3):
            assert read_all(dataset) == stats(1, 0, 0)
            clock.now += 3600


@pytest.mark.parametrize(
    "url",
    [
        "http://elsewhere.example/x", "file:///etc/passwd", "//[/x", "http://127.0.0.1:99999/x",
        "http://{host}", 7, "http://{host}/\u00e9", "http://{host}@elsewhere.example/x",
        "http://elsewhere.example#@{host}/x", "http://{host}.elsewhere.example/x",
    ],
)  # fmt: skip
def test_a_link_to_elsewhere_is_not_followed(service, monkeypatch, url):
    host = urlsplit(service.url).netloc
    url = url.replace("{host}", host) if isinstance(url, str) else url
    monkeypatch.setattr(
        Linking, "links",
        lambda self, wanted: {
            "urls": [{"shard": shard, "url": url} for shard in wanted], "expires_at": SOON
        },
    )  # fmt: skip
    with opening(service) as dataset:
        assert read_all(dataset) == stats(1, 0, 0)
    assert not service.linked


@pytest.mark.parametrize("path", ["/a b", "/a\r\nX-Injected: 1"])
def test_a_link_that_is_no_path_reaches_nobody(service, monkeypatch, path):
    monkeypatch.setattr(Linking, "host", lambda self: self.headers["Host"] + path)
    with opening(service) as dataset:
        assert read_all(dataset)["followed"] == 0
    assert not service.linked


@pytest.mark.parametrize("status", [200, 302, 403, 503])
def test_links_that_lead_nowhere_are_counted_and_the_service_is_read(service, caplog, status):
    service.bad = lambda self: self.answer(status, b"")
    clock = Clock()
    with opening(service, clock) as dataset:
        assert read_all(dataset) == stats(1, 0, 3)
        assert read_all(dataset) == stats(1, 0, 3), "left alone for a while"
        clock.now += links.PAUSE
        assert read_all(dataset) == stats(2, 0, 6)
        service.bad = None
        assert read_all(dataset) == stats(2, 0, 6)
        clock.now += links.PAUSE
        assert read_all(dataset) == stats(3, CHAINS, 6)
    (line,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "links to shards lead nowhere" in line and "evf_secret" not in line
    assert f"HTTP {status}" in line


def test_one_shard_without_its_link_leaves_the_others_theirs(service):
    with opening(service) as dataset:
        lost = dataset.manifest.shards[1].name
        service.bad = lambda self: (
            self.answer(403, b"") if lost in self.path else Service.do_GET(self)
        )
        assert read_all(dataset) == stats(1, CHAINS - 1, 1)
        assert read_all(dataset) == stats(1, 2 * (CHAINS - 1), 1)


@pytest.mark.parametrize("fault", ["flip", "cut", "hang up"])
def test_what_comes_wrong_by_a_link_is_read_from_the_service(service, fault):
    def bad(self):
        self.faults.append(fault)
        return Service.do_GET(self)

    service.bad = bad
    with opening(service) as dataset:
        read_all(dataset)
        assert len(service.linked) == (6 if fault == "hang up" else CHAINS)


def test_of_threads_that_want_links_one_asks(service):
    together = threading.Barrier(8)
    with opening(service) as dataset:

        def read(seed):
            together.wait(60)
            assert_same(dataset[f"chain{seed % CHAINS}_A"], random_record(seed % CHAINS))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(read, range(8)))
        assert dataset.storage.links.stats["asked"] == 1
