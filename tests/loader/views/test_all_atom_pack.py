"""Nothing of a recorded all-atom pack goes uncompared: samples, structures, crops and keys."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.featurize.records import (
    test_boltz_ruleset,
    test_openfold3_ruleset,
    test_protenix_ruleset,
)
from tests.loader.views import (
    test_boltz,
    test_openfold3,
    test_protenix,
)
from tests.loader.views.packs import packs, recordings

SAMPLES = {
    "boltz": test_boltz.SAMPLES,
    "openfold3": test_openfold3.SAMPLES,
    "protenix": test_protenix.SAMPLES,
}
STRUCTURES = {
    "boltz": test_boltz_ruleset.RECORDED,
    "openfold3": test_openfold3_ruleset.RECORDED,
    "protenix": test_protenix_ruleset.RECORDED,
}
CROPS = {
    "boltz": test_boltz.CROPS,
    "openfold3": test_openfold3.CROPS,
    "protenix": test_protenix.CROPS,
}
COMPARED = {"feature", "label", "label_full", "basic", "symmetry", "permutation", "crop"}
"""Parts of a sample that its test compares, every key of them."""
GIVEN = {"draw", "conformer"}
"""Parts of a sample that are its inputs."""
STEPS = {"msa_stage"}
"""Parts that the project had on the way: their outcome is `feature.msa`, which is compared."""


@pytest.mark.parametrize("project", SAMPLES)
@pytest.mark.parametrize("pack", packs(), ids=lambda pack: pack.name)
def test_every_sample_structure_and_crop_of_the_index_has_its_comparison(
    pack: Path, project: str
) -> None:
    listed = json.loads((pack / "index.json").read_text())[project]
    assert listed
    assert {pack / one["file"] for one in listed} == {
        path for path in SAMPLES[project] if path.is_relative_to(pack)
    }
    for folder, compared in (("structure", STRUCTURES), ("crops", CROPS)):
        mine = {path for path in compared[project] if path.is_relative_to(pack)}
        assert mine == set((pack / project / folder).glob("*.npz")) != set()
    assert {one["entry"] for one in listed} == {
        path.stem for path in STRUCTURES[project] if path.is_relative_to(pack)
    }


@pytest.mark.parametrize("path", recordings("*/samples/*.npz"), ids=lambda p: p.parts[-3:][0][0])
def test_every_key_of_a_sample_is_compared_or_given(path: Path) -> None:
    with np.load(path) as members:
        keys = json.loads(members["__schema__"].tobytes())["arrays"]
    parts = {name.split(".")[0] for name in keys}
    assert parts <= COMPARED | GIVEN | STEPS
    assert "feature" in parts
