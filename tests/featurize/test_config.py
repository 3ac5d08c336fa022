"""Settings: documented, refused when senseless, distinguished by their digest."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from evofeed.featurize import CropConfig, FeaturizeConfig

ROOT = Path(__file__).resolve().parents[2]


def test_every_deviation_from_openfold_is_documented() -> None:
    page = (ROOT / "featurize" / "INPUTS.md").read_text()
    ours, theirs = FeaturizeConfig(), FeaturizeConfig.openfold()
    differing = [
        field.name
        for field in dataclasses.fields(ours)
        if getattr(ours, field.name) != getattr(theirs, field.name)
    ]
    assert len(differing) >= 16
    for name in differing:
        assert f"| `{name}` |" in page, f"{name} differs from OpenFold but INPUTS.md is silent"
    listed = [
        line.split("`")[1] for line in page.splitlines() if line.startswith("| `") and "|" in line
    ]
    known = {field.name for field in dataclasses.fields(ours)}
    assert set(differing) == known.intersection(listed)


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        *((FeaturizeConfig, {"max_template_date": date}) for date in ("yesterday", "2021")),
        *((kind, {"max_templates": -1}) for kind in (FeaturizeConfig, CropConfig)),
        *((CropConfig, {name: 0}) for name in ("max_msa_rows", "msa_budget")),
    ],
)
def test_senseless_settings_are_a_wrong_call(config: Any, changes: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        config(**changes)


def test_the_digest_depends_on_every_setting() -> None:
    digests = {FeaturizeConfig().digest, FeaturizeConfig.openfold().digest}
    digests.add(FeaturizeConfig(max_templates=3).digest)
    assert len(digests) == 3 and FeaturizeConfig().digest in digests
    assert CropConfig().digest != CropConfig(seed=1).digest
