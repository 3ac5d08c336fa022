"""Loaders in launched, forked and killed processes; no reader process outlives them."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.featurize.job.stage import children
from tests.loader.children import OPENED, python, reader_pid
from tests.loader.streams import open_loader, sample_digests

from evofeed.store import Dataset


def test_closing_leaves_no_thread_and_no_process(dataset: Dataset) -> None:
    before = set(threading.enumerate())
    loader = open_loader(dataset, reader="process")
    sample_digests(loader, 2)
    pid = reader_pid(loader)
    assert pid is not None
    loader.close()
    loader.close()
    assert set(threading.enumerate()) <= before
    assert not Path(f"/proc/{pid}").exists()
    with open_loader(dataset) as again:
        sample_digests(again, 1)
    assert set(threading.enumerate()) <= before
    abandoned = open_loader(dataset, reader="process")
    sample_digests(abandoned, 1)
    pid = reader_pid(abandoned)
    assert pid is not None
    del abandoned
    assert set(threading.enumerate()) <= before
    assert not Path(f"/proc/{pid}").exists()


TRAINER = f"""{OPENED}
next(iter(loader))
print("ready", flush=True)
time.sleep(600)
"""


def test_the_reader_goes_when_its_trainer_is_killed(dataset: Dataset) -> None:
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, dataset.uri], stdout=subprocess.PIPE, text=True
    )
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "ready\n"
    grandchildren = children(trainer.pid)
    assert grandchildren
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    deadline = time.monotonic() + 240
    while any(Path(f"/proc/{pid}").exists() for pid in grandchildren):
        assert time.monotonic() < deadline, "the reader outlived its trainer"
        time.sleep(0.05)


FORKER = f"""
import os, sys, warnings
sys.path.pop(0)  # where `queue.py` would be found
warnings.simplefilter("ignore")
{OPENED}
first = next(iter(loader))["true_msa"].sum().item()
bystander = os.fork()
if not bystander:
    sys.exit()  # leaves alone what is its parent's
assert os.waitpid(bystander, 0)[1] == 0
child = os.fork()
second = next(iter(loader))["true_msa"].sum().item()
if child:
    assert os.waitpid(child, 0)[1] == 0
else:
    loader.close()
print(first, second, flush=True)
"""


def test_a_fork_may_go_on_with_the_loader_and_so_may_its_parent_which_closes_nothing(
    dataset: Dataset, tmp_path: Path
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('shadowed')")  # a file of the user's
    (tmp_path / "script.py").write_text(FORKER)
    done = python("script.py", dataset.uri, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first == second


SPAWNED = """
import multiprocessing, sys
def train(uri):
    from evofeed.loader import FeatureLoader, LoaderConfig
    from evofeed.store import Dataset
    config = LoaderConfig(crop_size=8, max_extra_msa=4, max_recycling_iters=0, global_batch_size=2)
    options = {"rank": 1, "world_size": 2, "device": "cpu"}
    with FeatureLoader(Dataset.open(uri), config, **options) as loader:
        print(len([batch for batch in loader]), flush=True)
if __name__ == "__main__":  # as `torch.multiprocessing.spawn` does
    rank = multiprocessing.get_context("spawn").Process(target=train, args=(sys.argv[1],))
    rank.start()
    rank.join()
    sys.exit(rank.exitcode)
"""


def test_ranks_may_be_spawned(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWNED)
    done = python("train.py", dataset.uri, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(dataset) // 2}\n"


def test_a_loader_that_has_not_begun_can_be_sent_to_another_process(
    dataset: Dataset, reference: list[str]
) -> None:
    loader = pickle.loads(pickle.dumps(open_loader(dataset)))
    with loader:
        assert sample_digests(loader, 3) == reference[:3]
