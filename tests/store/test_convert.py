"""Feature files of other programs: npz always, pickles only for those who made them."""

from __future__ import annotations

import gzip
import lzma
import os
import pickle

import numpy as np
import pytest
from tests.store.records import assert_same, random_record

from evofeed.base.errors import InputError
from evofeed.featurize import to_openfold_raw
from evofeed.store.convert import convert, from_raw_features, read_features

pytestmark = pytest.mark.system


def feature_dict(seed):
    return to_openfold_raw(random_record(seed))


def expected(seed, chain_id):
    """What of a random record a raw feature dict can carry."""
    record = random_record(seed)
    return record.replace(
        chain_id=chain_id,
        msa_source=np.zeros_like(record.msa_source),
        msa_sources=("converted",),
        template_center=np.zeros_like(record.template_center),
        template_release_date=("",) * record.num_templates,
        method="",
        inputs={},
        config_digest="",
        dropped=(),
        resolution=float(np.float32(record.resolution)),
    )


@pytest.mark.parametrize("seed", range(2))
def test_a_raw_feature_dict_becomes_the_record_it_came_from(seed):
    assert_same(from_raw_features(feature_dict(seed), "x_A"), expected(seed, "x_A"))


@pytest.mark.parametrize("opener", [open, gzip.open, lzma.open], ids=["pkl", "gz", "xz"])
def test_a_pickle_is_read_only_when_trusted(tmp_path, opener):
    suffix = {open: ".pkl", gzip.open: ".pkl.gz", lzma.open: ".pkl.xz"}[opener]
    path = tmp_path / f"1abc_A{suffix}"
    with opener(path, "wb") as file:
        pickle.dump(feature_dict(1), file)
    with pytest.raises(InputError, match="--trusted-pickle"):
        read_features(path)
    with pytest.raises(InputError, match="--trusted-pickle"):
        convert([path], str(tmp_path / "data"))
    assert_same(read_features(path, trusted_pickle=True), expected(1, "1abc_A"))


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_even_a_trusted_pickle_runs_no_code(tmp_path):
    path, mark = tmp_path / "evil.pkl", tmp_path / "mark"
    path.write_bytes(pickle.dumps({"aatype": Evil(mark)}))
    with pytest.raises(InputError, match=r"posix\.system is not allowed"):
        read_features(path, trusted_pickle=True)
    assert not mark.exists()


@pytest.mark.parametrize(
    "content", [b"", b"junk", pickle.dumps([1]), pickle.dumps({"a": [object]})]
)
def test_pickles_that_hold_no_features_are_refused(tmp_path, content):
    path = tmp_path / "x.pkl"
    path.write_bytes(content)
    with pytest.raises(InputError, match="pickle refused"):
        read_features(path, trusted_pickle=True)


def test_what_is_missing_is_named_and_other_files_still_count(tmp_path):
    good, bad, junk = (tmp_path / name for name in ("good_A.npz", "bad_A.npz", "junk_A.npz"))
    features = feature_dict(1).items()
    np.savez(good, **{k: v.astype("S") if v.dtype == object else v for k, v in features})
    np.savez(bad, aatype=np.eye(21))
    junk.write_bytes(b"PK but no zip")
    snapshot = convert([good, bad, junk], str(tmp_path / "data"))
    assert snapshot.manifest.num_chains == 1
    reasons = {d["chain_id"]: d["reason"] for d in snapshot.manifest.dropped}
    assert "no 'msa'" in reasons["bad_A"] and "npz" in reasons["junk_A"]
    with pytest.raises(InputError, match="none of 1"):
        convert([bad], str(tmp_path / "other"))
