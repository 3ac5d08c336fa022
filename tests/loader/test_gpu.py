"""On a GPU: the same integers, floats to rounding, and no buffer reused too early."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.conftest import golden_files
from tests.loader.complexes import three_complexes
from tests.loader.made import KNOWN, assert_same, replay_fused
from tests.loader.records import small_dataset
from tests.loader.test_golden import all_same, as_recorded
from tests.loader.views.made_entries import MadeChain, made_alignment, made_entry, made_templates
from tests.loader.views.openfold3_recorded import flat
from tests.loader.views.packs import slotted

from evofeed.loader import AssemblyConfig, FeatureLoader, LoaderConfig
from evofeed.loader.arena import Arena
from evofeed.loader.read_chain import slot_nbytes
from evofeed.loader.sample_draws import SampleDraws
from evofeed.loader.views.config import OpenFold3Config
from evofeed.loader.views.entry_view import ChainType
from evofeed.loader.views.openfold3.features import openfold3_features
from evofeed.loader.views.openfold3.plan import plan_sample

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CONFIG = LoaderConfig(crop_size=24, max_msa_clusters=16, max_extra_msa=32, epoch_len=24)


@pytest.mark.parametrize("fused", [True, False], ids=["kernels", "plain"])
def test_batches_of_cpu_and_gpu_agree(tmp_path: Path, fused: bool) -> None:
    dataset = small_dataset(tmp_path / "d")
    with (
        FeatureLoader(dataset, CONFIG, device="cpu") as on_cpu,
        FeatureLoader(dataset, CONFIG, device="cuda", fused=fused) as on_gpu,
    ):
        for want, got in zip(on_cpu, on_gpu, strict=True):
            assert_same(got, want, limit=1e-4)


def test_complexes_of_cpu_and_gpu_agree(tmp_path: Path) -> None:
    dataset = three_complexes(tmp_path)
    rules = AssemblyConfig(msa_rows=40, paired_rows=16, min_rows=24, interface_threshold=20.0)
    config = CONFIG.replace(assemblies=rules, epoch_len=6, batch_size=2)
    with (
        FeatureLoader(dataset.assemblies, config, device="cpu") as on_cpu,
        FeatureLoader(dataset.assemblies, config, device="cuda") as on_gpu,
    ):
        for want, got in zip(on_cpu, on_gpu, strict=True):
            for batches in ((got.pop("gt_features"), want.pop("gt_features")), (got, want)):
                assert_same(*batches, limit=1e-4)


@pytest.mark.parametrize("fused", [True, False], ids=["kernels", "plain"])
def test_a_consumer_that_lags_sees_every_batch_whole(tmp_path: Path, fused: bool) -> None:
    dataset = small_dataset(tmp_path / "d")
    with FeatureLoader(dataset, CONFIG, device="cpu") as loader:
        want = [batch["true_msa"].clone() for batch in loader]
    got = []
    with FeatureLoader(dataset, CONFIG, device="cuda", ready=1, fused=fused) as loader:
        for batch in loader:
            torch.cuda._sleep(10_000_000)
            got.append(batch["true_msa"].clone())
            del batch
    assert all(torch.equal(a, b.cpu()) for a, b in zip(want, got, strict=True))


@pytest.mark.parametrize("fused", [True, False], ids=["kernels", "plain"])
def test_a_slot_that_is_freed_is_not_read_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fused: bool
) -> None:
    """Freed slots are poisoned, copies and the consumer are delayed: batches must not change."""
    dataset = small_dataset(tmp_path / "d")
    with FeatureLoader(dataset, CONFIG, device="cpu", reader="thread") as loader:
        want = [dict(batch) for batch in loader]
        catalog = loader._catalogs[0]
    tight = int(2.5 * slot_nbytes(catalog.location(catalog.largest()), True)) + 8192
    poisoned = []
    free = Arena.free

    def poison_and_free(self: Arena, offset: int) -> None:
        nbytes = dict(self._slots)[offset]
        self.array[offset : offset + nbytes] = 0xFF
        poisoned.append(nbytes)
        free(self, offset)

    monkeypatch.setattr(Arena, "free", poison_and_free)
    got = []
    options = {"device": "cuda", "arena_nbytes": tight, "ready": 1, "fused": fused}
    with FeatureLoader(dataset, CONFIG, **options) as loader:
        for batch in loader:
            assert loader._feeder is not None
            side = loader._feeder._maker._stream
            assert side is not None
            with torch.cuda.stream(side):
                torch.cuda._sleep(20_000_000)  # copies lag about 10 ms behind
            torch.cuda._sleep(20_000_000)  # and so does the model
            got.append({name: value.clone() for name, value in batch.items()})
            del batch
    assert len(poisoned) >= len(want)
    for expected, actual in zip(want, got, strict=True):
        assert_same(actual, expected, limit=1e-4)


@pytest.mark.parametrize("path", golden_files("data/golden/*.draws.npz"), ids=lambda p: p.name)
def test_recordings_replay_through_the_kernels(path: Path, tmp_path: Path) -> None:
    case, kernels, batch = replay_fused(path, tmp_path / "d", "cuda")
    assignment = torch.from_numpy(case.draws["mid.extra_cluster_assignment"])
    assert torch.equal(kernels.cluster[: len(assignment)].cpu().long(), assignment.long())
    found = as_recorded(batch, case.final)
    assert len(found) > 20
    all_same(found, case.final, list(found), KNOWN.__contains__)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_features_on_a_gpu_are_those_of_the_cpu_and_nothing_waits() -> None:
    residues = (("ALA", 5), ("GLY", 4), ("TRP", 14)) * 60
    chains = [
        MadeChain("1", 1, ChainType.PROTEIN, residues, 0),
        MadeChain("2", 2, ChainType.PROTEIN, residues, 1),
        MadeChain("3", 3, ChainType.LIGAND, (("HEM", 43),)),
    ]
    view = made_entry(chains, [(0, 2761), (2760, 2761)], alignments=("a", "b"))
    names = [f"S{n}" for n in range(900)]
    made = [made_alignment(name, names, columns=180, seed=n) for n, name in enumerate("ab")]
    made = [rows.with_templates(made_templates(180)) for rows in made]
    config = OpenFold3Config(main_sources=("uniprot_hits",), used_rows=1024)
    packed = plan_sample(view, made, (0,), SampleDraws(1), config)
    assert "_template_restype" in packed
    expected = flat(openfold3_features(slotted(packed), config))
    openfold3_features(slotted(packed, "cuda"), config)
    on_device = slotted(packed, "cuda")
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        features = openfold3_features(on_device, config)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for name, value in flat(features).items():
        close = 1e-5 if name == "ref_pos" else 1e-6 if value.is_floating_point() else 0
        torch.testing.assert_close(value.cpu(), expected[name], rtol=0, atol=close)
