"""An input in a bucket is copied, and only its changed files when it is copied again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bucket import Bucket, local_bucket
from tests.conftest import exit_code
from tests.featurize.test_readers import A, write

from evofeed.base.errors import InputError, StoreError
from evofeed.featurize import discover, featurize_chain, stage_input
from evofeed.store import Dataset
from evofeed.store.s3 import S3Storage

ROWS = f">q\n{A}\n"
FILES = {"alignments/1abc_A/a.a3m": f"{ROWS}>x\nAC-EF\n", "alignments/2abc_A/a.a3m": ROWS}


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with local_bucket() as bucket:
        yield bucket


def test_a_prefix_is_copied_and_again_where_it_changed(bucket: Bucket, tmp_path: Path) -> None:
    raw, home = write(tmp_path / "raw", FILES), str(tmp_path / "home")
    progress: list[tuple[int, int]] = []
    copy = stage_input(bucket.fill(raw), home, progress=lambda *done: progress.append(done))
    assert [featurize_chain(s).num_alignments for s in discover(copy)] == [2, 1]
    assert progress[-1][0] == progress[-1][1] == sum(map(len, FILES.values()))
    first = {path: path.stat() for path in Path(home).rglob("*.a3m")}
    write(Path(home), {"alignments/9old_A/a.a3m": "gone from the bucket"})
    write(raw, {"alignments/2abc_A/a.a3m": f">q\n{A}\n>y\nA--EF\n"})
    bucket._client.put_object(
        Bucket=bucket.uri[5:],
        Key="set/alignments/2abc_A/a.a3m",
        Body=(raw / "alignments/2abc_A/a.a3m").read_bytes(),
    )
    assert stage_input(f"{bucket.uri}/set/", home) == copy
    assert [featurize_chain(s).num_alignments for s in discover(copy)] == [2, 2]
    same = Path(home) / "alignments/1abc_A/a.a3m"
    assert os.path.samestat(same.stat(), first[same])  # not fetched again


def test_one_file_is_copied_in_chunks_and_not_again(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = bucket.fill(write(tmp_path / "raw", FILES))
    sizes: list[int] = []
    read_into = S3Storage.read_into

    def counted(storage: S3Storage, key: str, offset: int, out: memoryview) -> None:
        sizes.append(len(out))
        read_into(storage, key, offset, out)

    monkeypatch.setattr(S3Storage, "read_into", counted)
    monkeypatch.setattr("evofeed.featurize.inputs.stage._CHUNK", 8)
    for _ in range(2):
        copy = Path(stage_input(f"{uri}/alignments/1abc_A/a.a3m", str(tmp_path / "one")))
        assert copy.read_text() == FILES["alignments/1abc_A/a.a3m"] and copy.name == "a.a3m"
    assert sum(sizes) == copy.stat().st_size and max(sizes) == 8


def test_a_missing_bucket_or_too_little_disk_is_a_typed_error(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = str(tmp_path / "home")
    with pytest.raises(StoreError, match=r"s3://no-such-bucket.*: no such bucket: create"):
        stage_input("s3://no-such-bucket/raw", home)
    with pytest.raises(InputError, match=r"/nowhere: nothing is there"):
        stage_input(f"{bucket.uri}/nowhere", str(tmp_path / "empty"))
    write(tmp_path / "mine", {"thesis.txt": "years of work"})
    with pytest.raises(InputError, match=r"mine: not empty, and no copy of s3://"):
        stage_input(f"{bucket.uri}/set", str(tmp_path / "mine"))
    assert (tmp_path / "mine" / "thesis.txt").exists()
    uri = bucket.fill(write(tmp_path / "raw", FILES))
    monkeypatch.setattr("evofeed.featurize.inputs.stage._RESERVED_BYTES", 1 << 60)
    with pytest.raises(InputError, match=r"bytes are to be copied .* --stage"):
        stage_input(uri, home)
    with pytest.raises(InputError, match=r"`evofeed featurize` copies it first"):
        discover(uri)


def test_the_command_takes_input_in_a_bucket(bucket: Bucket, tmp_path: Path, inside: None) -> None:
    uri = bucket.fill(write(tmp_path / "raw", FILES))
    words = ("featurize", uri, str(tmp_path / "data"), "--stage", str(tmp_path / "home"))
    assert exit_code(*words) == 0
    assert "1abc_A" in Dataset.open(tmp_path / "data").index["chain_id"].to_pylist()
