"""What the service's tests share: a small dataset with two snapshots, and a running service."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import SecretStr

from evofeed.features import ChainRecord
from evofeed.residues import RESTYPES, UNKNOWN
from evofeed.service import ServiceSettings, serving
from evofeed.store import DatasetWriter

METHODS = ("X-RAY DIFFRACTION", "SOLUTION NMR", "ELECTRON MICROSCOPY", "")


def make_record(number: int) -> ChainRecord:
    """A chain whose sampled properties all differ from its neighbours'."""
    rng = np.random.default_rng(number)
    L, N = int(rng.integers(5, 120)), int(rng.integers(1, 40))
    aatype = rng.integers(0, UNKNOWN, L).astype(np.uint8)
    msa = rng.integers(0, UNKNOWN, [N, L]).astype(np.uint8)
    msa[0] = aatype
    none = np.zeros(0, np.int32)
    return ChainRecord(
        chain_id=f"{number:04d}_A",
        sequence="".join(RESTYPES[code] for code in aatype),
        aatype=aatype,
        residue_index=np.arange(L, dtype=np.int32),
        msa=msa,
        deletion_row=none,
        deletion_column=none,
        deletion_count=none,
        msa_source=np.zeros(N, np.uint8),
        msa_sources=("hits.a3m",),
        msa_species=("",) * N,
        hhblits_profile_counts=(msa[:, :, None] == np.arange(22)).sum(0).astype(np.int32),
        template_aatype=np.zeros([0, L], np.uint8),
        template_all_atom_positions=np.zeros([0, L, 37, 3], np.float32),
        template_all_atom_mask=np.zeros([0, L, 37], np.uint8),
        template_center=np.zeros([0, 3], np.float32),
        template_sum_probs=np.zeros(0, np.float32),
        resolution=float(rng.choice([0.0, 1.7, 2.95, 4.1])),
        release_date=("", "2012-02-29", "2019-04-01")[number % 3],
        method=METHODS[number % 4],
        is_distillation=number % 5 == 0,
    ).validate()


def publish(folder: Path, numbers: range, expect: str | None = None, per_shard: int = 12) -> str:
    """Commit chains of these numbers to `main`; the digest."""
    writer = DatasetWriter(str(folder))
    for i, number in enumerate(numbers):
        writer.add(make_record(number))
        if i % per_shard == per_shard - 1:
            writer.flush()
    return writer.commit("main", expect=expect, config={"made_by": "a test"}).digest


class Served:
    """A dataset folder with two snapshots, behind a running service."""

    def __init__(self, folder: Path, url: str, first: str, second: str) -> None:
        self.folder, self.url, self.first, self.second = folder, url, first, second
        self.base = f"{url}/v1/datasets/demo"
        self.client = httpx.Client(base_url=url)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(f"{self.base}{path}", **options)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A dataset of 40 chains, then of 45, and both digests; not to be changed."""
    path = tmp_path_factory.mktemp("dataset")
    first = publish(path, range(40))
    second = publish(path, range(45), expect=first)
    return path, first, second


@pytest.fixture(scope="session")
def served(folder: tuple[Path, str, str]) -> Iterator[Served]:
    """The service on that dataset, for tests that only read."""
    path, first, second = folder
    with serving({"demo": path}) as url:
        service = Served(path, url, first, second)
        with service.client:
            yield service


Start = Callable[..., httpx.Client]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts services with settings of the test's own, each on its own SQLite file."""
    with ExitStack() as stack:

        def begin(**changes: Any) -> httpx.Client:
            defaults: dict[str, Any] = {
                "home": tmp_path / f"home{len(stack._exit_callbacks)}",  # type: ignore[attr-defined]
                "database_url": SecretStr(""),
                "host": "127.0.0.1",
                "port": 0,
                "datasets": {},
            }
            url = stack.enter_context(serving(ServiceSettings(**(defaults | changes))))
            return stack.enter_context(httpx.Client(base_url=url))

        yield begin


@contextmanager
def open_client(url: str, token: str = "") -> Iterator[httpx.Client]:
    """A client that carries a token."""
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}) as client:
        yield client


# importlib mode gives test folders no package; this makes these helpers importable.
sys.modules["conftest_service"] = sys.modules[__name__]
