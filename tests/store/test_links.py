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
        base = f"http://{self.headers['Host']}/links"
        urls = [{"shard": shard, "url": f"{base}/{shard}?s=1"} for shard in wanted]
        return {"urls": urls, "expires_at": ends.isoformat()}

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
        monkeypatch.setenv("EVOFEED_LINK_ORIGINS", f"http://x,{url}")
        yield handler


class Clock:
    """Seconds, put forward by hand."""

    def __init__(self):
        self.now = 1e6

    def __call__(self):
        return self.now


def opening(service, clock=time.monotonic):
    return Dataset.of(HttpStorage(service.url, first_wait=0.001, clock=clock))


def read_all(dataset, service):
    """How often links were asked for and followed until now, once all chains are read."""
    for seed in range(CHAINS):
        assert_same(dataset[f"chain{seed}_A"], random_record(seed))
    return len(service.asked), len(service.linked)


def test_links_are_asked_for_once_in_batches_and_followed_without_the_token(service, monkeypatch):
    monkeypatch.setattr(links, "BATCH", 3)
    with opening(service) as dataset:
        names = [entry.name for entry in dataset.manifest.shards]
        assert read_all(dataset, service) == (2, CHAINS)
        assert read_all(dataset, service) == (2, 2 * CHAINS)
        assert [token for *_, token in service.asked] == ["Bearer evf_secret"] * 2
        assert sorted(wanted for _, wanted, _ in service.asked) == sorted([names[:3], names[3:]])
        assert {token for _, token in service.linked} == {None}
        again = pickle.loads(pickle.dumps(dataset.storage))
        assert again.links.shards == tuple(names) and not again.links._links


def test_a_cache_and_a_copy_fill_by_links(service, tmp_path):
    dataset = Dataset.open(service.url, cache=Cache(folder=str(tmp_path / "cache")))
    for seed in range(CHAINS):
        assert_same(dataset[f"chain{seed}_A"], random_record(seed))
    assert len(service.linked) == CHAINS
    dataset.close()
    copy_dataset(service.url, tmp_path / "copy")
    assert len(service.linked) == 2 * CHAINS
    assert Dataset.open(tmp_path / "copy").verify(deep=True) == []


@pytest.mark.parametrize("ahead", [-86_400.0, 86_400.0])
def test_links_last_as_long_as_the_service_says_by_its_own_clock(service, ahead):
    service.ahead, clock = ahead, Clock()
    with opening(service, clock) as dataset:
        for later, asked in ((0, 1), (530, 1), (200, 2)):
            clock.now += later
            assert read_all(dataset, service)[0] == asked
    assert len(service.linked) == 3 * CHAINS


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
        asked, _ = read_all(dataset, service)
        assert read_all(dataset, service) == (asked, 0)
        clock.now += links.PAUSE
        assert read_all(dataset, service) == (2 * asked, 0)


def test_links_that_never_end_are_never_asked_for_again(service):
    service.said, clock = saying({"urls": [], "expires_at": None}), Clock()
    with opening(service, clock) as dataset:
        for _ in range(3):
            assert read_all(dataset, service) == (1, 0)
            clock.now += 3600


@pytest.mark.parametrize(
    "url",
    [
        "http://elsewhere.example/x", "file:///etc/passwd", "//[/x", "http://127.0.0.1:99999/x",
        "http://{host}", 7, "http://{host}/\u00e9", "http://{host}@elsewhere.example/x",
        "http://elsewhere.example#@{host}/x", "http://{host}.elsewhere.example/x",
        "http://{host}/a b", "http://{host}/a\r\nX-Injected: 1",
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
        assert read_all(dataset, service) == (1, 0)


@pytest.mark.parametrize("status", [200, 302, 403, 503, "hang up"])
def test_a_link_that_leads_nowhere_is_told_and_the_service_is_read_for_a_while(
    service, caplog, status
):
    def bad(self):
        self.faults.append(status if isinstance(status, str) else (status, b""))
        return Service.do_GET(self)

    service.bad, clock = bad, Clock()
    with opening(service, clock) as dataset:
        _, tried = read_all(dataset, service)
        assert read_all(dataset, service) == (1, tried), "left alone for a while"
        service.bad = None
        clock.now += links.PAUSE
        assert read_all(dataset, service) == (2, tried + CHAINS)
    (line,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "links to shards lead nowhere" in line and "evf_secret" not in line
    assert isinstance(status, str) or f"HTTP {status}" in line


@pytest.mark.parametrize("fault", ["flip", "cut"])
def test_what_comes_wrong_by_a_link_is_read_from_the_service(service, fault):
    def bad(self):
        self.faults.append(fault)
        return Service.do_GET(self)

    service.bad = bad
    with opening(service) as dataset:
        assert read_all(dataset, service) == (1, 1)


def test_of_threads_that_want_links_one_asks(service):
    together = threading.Barrier(8)
    with opening(service) as dataset:

        def read(seed):
            together.wait(60)
            assert_same(dataset[f"chain{seed % CHAINS}_A"], random_record(seed % CHAINS))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(read, range(8)))
    assert len(service.asked) == 1
