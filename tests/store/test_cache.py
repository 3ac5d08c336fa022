"""The local cache of remote shards: capped, checked, shared, and never the only copy."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import shutil
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.store.records import assert_same, flip, published, random_record

from evofeed.base.errors import ShardCorrupt, StoreError
from evofeed.store import Cache, Dataset


@pytest.fixture
def remote(tmp_path):
    """A dataset of six one-chain shards; a folder plays the remote."""
    published(tmp_path / "remote", map(record, range(6)), shard_nbytes=1)
    return tmp_path / "remote"


def record(seed):
    return random_record(seed, num_res=30, num_alignments=10, num_templates=1)


def cached(remote, tmp_path, max_nbytes=1 << 30):
    return Dataset.open(remote, cache=Cache(folder=str(tmp_path / "cache"), max_nbytes=max_nbytes))


def cached_shards(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache" / "shards").glob("*.arrow"))


def test_a_shard_is_fetched_once_and_read_locally_after(remote, tmp_path):
    dataset = cached(remote, tmp_path)
    for seed in (*range(6), *range(6)):
        assert_same(dataset[f"chain{seed}_A"], record(seed))
    assert dataset.storage.stats == {"hits": 12, "fills": 6, "evictions": 0, "bypassed": 0}
    assert len(cached_shards(tmp_path)) == 6
    again = pickle.loads(pickle.dumps(dataset))
    assert_same(again["chain1_A"], record(1))
    assert again.storage.stats["fills"] == 0


def test_the_cap_holds_and_the_least_used_goes_first(remote, tmp_path):
    sizes = [entry.nbytes for entry in Dataset.open(remote).manifest.shards]
    dataset = cached(remote, tmp_path, max_nbytes=3 * max(sizes))
    for step, seed in enumerate((0, 1, 2)):
        dataset[f"chain{seed}_A"]
        path = (
            dataset.storage._folder / dataset.index["shard"][dataset.row(f"chain{seed}_A")].as_py()
        )
        os.utime(path, (step, step))
    dataset["chain3_A"]
    names = [dataset.index["shard"][dataset.row(f"chain{seed}_A")].as_py() for seed in (1, 2, 3)]
    assert cached_shards(tmp_path) == sorted(names)
    assert dataset.storage.stats["evictions"] == 1
    links = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    assert not [path for path in links if str(tmp_path / "cache") in path], "takes room unnamed"
    shutil.rmtree(tmp_path / "cache")
    dataset = cached(remote, tmp_path, max_nbytes=10)  # which no shard fits
    assert_same(dataset["chain2_A"], record(2))
    assert cached_shards(tmp_path) == [] and dataset.storage.stats["bypassed"] == 1


def test_a_cache_that_vanishes_is_begun_again_and_one_that_cannot_be_is_gone_around(
    remote, tmp_path
):
    dataset = cached(remote, tmp_path)
    assert_same(dataset["chain0_A"], record(0))
    shutil.rmtree(tmp_path / "cache")
    assert_same(dataset["chain1_A"], record(1))
    assert len(cached_shards(tmp_path)) == 1
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("a file where a folder should be")
    assert_same(dataset["chain2_A"], record(2))
    assert dataset.storage.stats["bypassed"] == 1
    with pytest.raises(StoreError, match="give Cache another folder"):
        cached(remote, tmp_path)


def test_the_only_copy_is_never_evicted(remote, tmp_path):
    sizes = [entry.nbytes for entry in Dataset.open(remote).manifest.shards]
    dataset = cached(remote, tmp_path, max_nbytes=max(sizes) + 10)
    dataset["chain0_A"]
    (name,) = cached_shards(tmp_path)
    (remote / "shards" / name).unlink()
    dataset.storage.remote._open.clear()  # a folder as remote would still hold the file open
    assert_same(dataset["chain1_A"], record(1))
    assert cached_shards(tmp_path) == [name]
    assert_same(dataset["chain0_A"], record(0))


def test_damage_on_the_way_is_found_when_filling(remote, tmp_path):
    dataset = cached(remote, tmp_path)
    name = dataset.index["shard"][0].as_py()
    flip(remote / "shards" / name, 40)
    with pytest.raises(ShardCorrupt, match="after 2 downloads"):
        dataset[0]
    assert cached_shards(tmp_path) == []
    assert not list((tmp_path / "cache" / "shards").glob(".tmp-*"))


@pytest.mark.parametrize("fault", ["flip", "cut"])
def test_a_local_copy_that_went_bad_is_fetched_again(remote, tmp_path, fault):
    dataset = cached(remote, tmp_path)
    dataset["chain3_A"]
    (name,) = cached_shards(tmp_path)
    path = tmp_path / "cache" / "shards" / name
    flip(path) if fault == "flip" else os.truncate(path, 100)
    for _ in range(2):
        assert_same(dataset["chain3_A"], record(3))
    assert dataset.storage.stats["fills"] == 2
    assert path.read_bytes() == (remote / "shards" / name).read_bytes()


def test_a_full_disk_is_found_before_a_shard_is_fetched(remote, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    dataset = cached(remote, tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    for _ in range(2):
        assert_same(dataset["chain2_A"], record(2))
    assert dataset.storage.stats == {"hits": 0, "fills": 0, "evictions": 0, "bypassed": 2}
    assert not list((tmp_path / "cache" / "shards").glob(".tmp-*"))


def test_a_cache_stays_where_it_was_when_a_script_goes_elsewhere(remote, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dataset = Dataset.open("remote", cache=Cache(folder="cache"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert_same(pickle.loads(pickle.dumps(dataset))["chain0_A"], record(0))
    assert len(cached_shards(tmp_path)) == 1
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_cache_is_not_put_into_a_dataset(remote):
    with pytest.raises(ValueError, match="is a dataset"):
        Cache(folder=str(remote))


def test_what_a_dead_process_left_is_swept(remote, tmp_path):
    dataset = cached(remote, tmp_path)
    left = dataset.storage._folder / ".tmp-dead"
    left.write_bytes(b"x" * 1000)
    dataset[0]
    assert not left.exists()


def read_all(arguments):
    remote, tmp_path, max_nbytes, order = arguments
    dataset = cached(remote, tmp_path, max_nbytes)
    for seed in order:
        assert_same(dataset[f"chain{seed}_A"], record(seed))
    with dataset.storage._exclusive():  # a sum while others fill and evict would count both
        total = sum(path.stat().st_size for path in dataset.storage._folder.glob("[!.]*"))
    return total, dataset.storage.stats["fills"]


@pytest.mark.parametrize("room", [2, 6])
def test_many_processes_and_threads_share_one_cache(remote, tmp_path, room):
    sizes = [entry.nbytes for entry in Dataset.open(remote).manifest.shards]
    cap = room * max(sizes)
    orders = [[(start + step) % 6 for step in range(8)] for start in range(4)]
    work = [(remote, tmp_path, cap, order) for order in orders]
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        done = list(pool.map(read_all, work))
    assert all(total <= cap for total, _ in done)
    if room == 6:
        assert sum(fills for _, fills in done) == 6
    with ThreadPoolExecutor(4) as pool:
        assert all(total <= cap for total, _ in pool.map(read_all, work))
