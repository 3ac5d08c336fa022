"""OpenFold3's features on a GPU: the CPU's, queued without waiting for the device."""

from __future__ import annotations

import pytest
import torch
from tests.loader.views.made_entries import MadeChain, made_alignment, made_entry
from tests.loader.views.test_openfold3_features import flat

from evofeed.loader.views.config import OpenFold3Config
from evofeed.loader.views.draws import OpenFold3Draws
from evofeed.loader.views.entry_view import ChainType
from evofeed.loader.views.openfold3.features import openfold3_features
from evofeed.loader.views.openfold3.plan import ON_HOST, plan_sample


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
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
    config = OpenFold3Config(main_sources=("uniprot_hits",), used_rows=1024)
    packed = plan_sample(view, made, (0,), OpenFold3Draws(1), config)
    host = {name: torch.from_numpy(value) for name, value in packed.items()}
    there = {name: value if name in ON_HOST else value.cuda() for name, value in host.items()}
    expected = flat(openfold3_features(host, config))
    openfold3_features(there, config)
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        features = openfold3_features(there, config)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for name, value in flat(features).items():
        close = 1e-5 if name == "ref_pos" else 1e-6 if value.is_floating_point() else 0
        torch.testing.assert_close(value.cpu(), expected[name], rtol=0, atol=close)
