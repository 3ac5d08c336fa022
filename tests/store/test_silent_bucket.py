"""A bucket that takes connections and says nothing: every reader ends in time, with a reason."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest
from tests.conftest import evofeed

from evofeed.base.errors import StoreError
from evofeed.store import Dataset
from evofeed.store.opening import open_storage
from evofeed.synth import write_synthetic

SILENCE, URI = 0.4, "s3://bucket/x"
REASON = r"s3://bucket/x.*no answer within \d+ s: check AWS_ENDPOINT_URL.*EVOFEED_S3_TIMEOUT"


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "x")
        monkeypatch.setenv("EVOFEED_S3_TIMEOUT", str(SILENCE))
        yield


@pytest.mark.parametrize(
    "ask",
    [
        lambda: open_storage(URI).read("refs/main"),
        lambda: open_storage(URI).put("refs/main", b"x"),
        lambda: open_storage(URI).swap("refs/main", None, b"x"),
        lambda: list(open_storage(URI).files("snapshots/")),
        lambda: Dataset.open(URI),
    ],
    ids=["read", "put", "swap", "list", "dataset"],
)
def test_no_request_waits_longer_than_it_says(ask: Callable[[], object]) -> None:
    began = time.monotonic()
    with pytest.raises(StoreError, match=REASON):
        ask()
    assert time.monotonic() - began < 20 * SILENCE


def test_commands_end_with_one_line(tmp_path) -> None:
    write_synthetic(tmp_path / "raw", 1, seed=0)
    listing = ["snapshots", "ls", URI]
    publish = ["featurize", str(tmp_path / "raw"), URI]
    stage = ["featurize", URI, str(tmp_path / "out"), "--stage", str(tmp_path / "stage")]
    for command in (listing, publish, stage):
        began = time.monotonic()
        last = evofeed(*command, code=1).err.strip().splitlines()[-1]
        assert "no answer within" in last, (command, last)
        assert time.monotonic() - began < 60 * SILENCE


@pytest.mark.parametrize("text", ["soon", "0", "nan"])
def test_a_timeout_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVOFEED_S3_TIMEOUT", text)
    with pytest.raises(StoreError, match=rf"EVOFEED_S3_TIMEOUT={text!r}: give seconds"):
        open_storage(URI).read("refs/main")
