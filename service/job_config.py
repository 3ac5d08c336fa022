"""How a job featurises and crops, from what a client sends: checked field by field."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter, ValidationError

from evofeed.service.problems import Problem

if TYPE_CHECKING:
    from evofeed.featurize.job import CropConfig, FeaturizeConfig

Preset = Literal["safe", "openfold"]


def checked_config(preset: Preset, changes: dict[str, Any]) -> dict[str, Any]:
    """Every field of a `FeaturizeConfig`: a preset with some fields changed.

    Raises:
        Problem: 422, an unknown field or a value it does not take; 403, featurize is
            not installed here.
    """
    # Only a service that runs jobs needs the featurize extra installed.
    try:
        from evofeed.featurize.job import FeaturizeConfig
    except ModuleNotFoundError as error:
        raise Problem(
            403,
            "no_jobs",
            f"this service cannot featurise: {error.name} is not installed",
            next="pip install 'evofeed[featurize]' where the service runs",
        ) from None
    base = FeaturizeConfig.openfold() if preset == "openfold" else FeaturizeConfig()
    return dataclasses.asdict(
        _checked(FeaturizeConfig, dataclasses.asdict(base) | changes, "config")
    )


def checked_crop(values: dict[str, Any] | None) -> dict[str, Any] | None:
    """Every field of a `CropConfig`, or None for no crop.

    Raises:
        Problem: 422.
    """
    from evofeed.featurize.job import CropConfig

    return None if values is None else dataclasses.asdict(_checked(CropConfig, values, "crop"))


def build(spec: dict[str, Any]) -> tuple[FeaturizeConfig, CropConfig | None]:
    """The configs of a job's row, as the driver takes them."""
    from evofeed.featurize.job import CropConfig, FeaturizeConfig

    crop = spec["crop"]
    return (
        _checked(FeaturizeConfig, spec["config"], "config"),
        None if crop is None else _checked(CropConfig, crop, "crop"),
    )


def _checked(kind: type[Any], values: dict[str, Any], where: str) -> Any:
    fields = {field.name for field in dataclasses.fields(kind)}
    if unknown := sorted(set(values) - fields):  # pydantic would pass over them
        raise Problem(
            422,
            "bad_request",
            f"{where}: no field {unknown[0][:60]!r}",
            next=f"the fields are {', '.join(sorted(fields))}",
        )
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        errors = [
            {
                "where": ".".join([where, *map(str, item["loc"])]),
                "what": str(item["msg"]).removeprefix("Value error, "),
            }
            for item in error.errors(include_url=False)
        ]
        raise Problem(
            422,
            "bad_request",
            f"{errors[0]['where']}: {errors[0]['what']}",
            next="`evofeed featurize --help` and the feature docs list the fields",
            errors=errors,
        ) from None
