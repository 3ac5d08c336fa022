"""A run's whole configuration as flat names and values, and where two of them differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from evofeed.trainer.presets import PRESETS

_ABSENT = "(none)"


def preset_settings(name: str) -> dict[str, str]:
    """What a preset means, its model, loss and loader with every field; empty if unknown."""
    if name not in PRESETS:  # of another version
        return {}
    preset = PRESETS[name]()
    return _flat(
        {
            **preset.train.to_dict(),
            "model": asdict(preset.model),
            "loss": asdict(preset.loss),
            "loader": asdict(preset.loader),
        }
    )


def run_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """All settings of a run, from the configuration in its `run.json` over its preset."""
    own = _flat(config)
    base = preset_settings(str(config.get("preset")))
    # `template: null` takes the place of every template.something.
    whole = {k: v for k, v in base.items() if not any(k.startswith(f"{name}.") for name in own)}
    return whole | own


def differences(columns: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Settings that are not the same in all columns, with their value in each."""
    names = dict.fromkeys(name for column in columns for name in column)
    rows = {name: [column.get(name, _ABSENT) for column in columns] for name in names}
    return {name: row for name, row in rows.items() if len(set(row)) > 1}


def table(heads: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """An HTML table: `heads` are HTML, everything else is escaped; empty without rows."""
    if not rows:
        return ""
    top = f"<tr><th></th>{''.join(heads)}</tr>" if heads else ""
    body = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>"
        for name, row in rows.items()
    )
    return f"<table>{top}{body}</table>"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = json.dumps(value, default=str, ensure_ascii=False)
    return flat
