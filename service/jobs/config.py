"""How a job featurizes and crops, from what a client sends: checked field by field."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from evofeed.base.configs import replaced
from evofeed.service.problems import Problem

if TYPE_CHECKING:
    from evofeed.featurize.job import CropConfig, FeaturizeConfig

Preset = Literal["safe", "openfold"]
_C = TypeVar("_C")


def checked_config(
    preset: Preset, changes: dict[str, Any], allowed: Mapping[str, float]
) -> dict[str, Any]:
    """Every field of a `FeaturizeConfig`: a preset with some fields changed.

    Raises:
        Problem: 422, an unknown field or a value it does not take, or a cap beyond what
            is allowed; 403, featurize is not installed here.
    """
    # Only a service that runs jobs needs the featurize extra installed.
    try:
        from evofeed.featurize.job import FeaturizeConfig
    except ModuleNotFoundError as error:
        message = f"this service cannot featurize: {error.name} is not installed"
        hint = "pip install 'evofeed[featurize]' where the service runs"
        raise Problem(403, "no_jobs", message, next=hint) from None
    base = FeaturizeConfig.openfold() if preset == "openfold" else FeaturizeConfig()
    config = _checked(base, changes, "config")
    limits = dataclasses.asdict(base.caps) | dict(allowed)
    for name, value in dataclasses.asdict(config.caps).items():
        require_within(f"config.caps.{name}", value, limits[name])
    return dataclasses.asdict(config)


def require_within(where: str, value: float, limit: float) -> None:
    """Refuse values beyond the operator's limits (raises Problem: 422)."""
    if value > limit:
        raise Problem(
            422,
            "beyond_limit",
            f"{where} is {value:g}, and this service allows {limit:g}",
            next="ask for less; GET /v1/config lists the limits",
            errors=[{"where": where, "what": f"at most {limit:g}"}],
        )


def checked_crop(values: dict[str, Any] | None) -> CropConfig | None:
    """The crop of these fields, or None for no crop (raises Problem: 422)."""
    from evofeed.featurize.job import CropConfig

    return None if values is None else _checked(CropConfig(), values, "crop")


def cores() -> int:
    """Cores this process may use: the default number of a job's workers."""
    return len(os.sched_getaffinity(0))


def build(spec: dict[str, Any]) -> tuple[FeaturizeConfig, CropConfig | None]:
    """The configs of a job's row, for the driver."""
    from evofeed.featurize.job import FeaturizeConfig

    return _checked(FeaturizeConfig(), spec["config"], "config"), checked_crop(spec["crop"])


def _checked(base: _C, values: dict[str, Any], where: str) -> _C:
    try:
        return replaced(base, values, f"{where}.")
    except ValueError as error:
        next_step = "correct this field; the others are as good as they are"
        raise Problem(422, "bad_request", str(error)[:1000], next=next_step) from None
