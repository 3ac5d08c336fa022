"""The HTTP interface as it was promised: `python -m evofeed.service.contract [--break]`.

`docs/openapi.json` is what clients were generated from. This writes it again, and refuses
where that would break one of them, unless asked to.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

PROMISED: Final = Path(__file__).resolve().parent.parent / "docs" / "openapi.json"


def described() -> dict[str, Any]:
    """The interface as the code has it."""
    from evofeed.service import ServiceSettings, create_app

    with tempfile.TemporaryDirectory() as home:
        app = create_app(ServiceSettings(home=Path(home), auth="on"))
        app.state.service.close()
        schema: dict[str, Any] = json.loads(json.dumps(app.openapi()))
    return schema


def breaks(promised: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What a client made from `promised` would miss or be refused for now."""
    found = []
    for path, operations in promised["paths"].items():
        for method, old in operations.items():
            new = now["paths"].get(path, {}).get(method)
            where = f"{method.upper()} {path}"
            found += [f"{where} is gone"] if new is None else _operation(where, old, new)
    for name, old in promised["components"]["schemas"].items():
        new = now["components"]["schemas"].get(name)
        found += [f"{name} is gone"] if new is None else _schema(name, old, new)
    return found


def _operation(where: str, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    found = []
    if old["operationId"] != new["operationId"]:
        found.append(f"{where}: operationId was {old['operationId']}")
    before = {(p["in"], p["name"]): p for p in old.get("parameters", [])}
    after = {(p["in"], p["name"]): p for p in new.get("parameters", [])}
    found += [f"{where}: parameter {key[1]} is gone" for key in before.keys() - after.keys()]
    for key, parameter in after.items():
        if parameter.get("required") and not before.get(key, {}).get("required"):
            found.append(f"{where}: parameter {key[1]} is required now")
    good = {status for status in old["responses"] if status < "4"}
    found += [f"{where}: no answer {status} any more" for status in good - set(new["responses"])]
    return found


def _schema(name: str, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    before, after = old.get("properties", {}), new.get("properties", {})
    found = [f"{name}.{field} is gone" for field in before.keys() - after.keys()]
    more = set(new.get("required", [])) - set(old.get("required", []))
    found += [f"{name}.{field} is required now" for field in more if field in before]
    for field in before.keys() & after.keys():
        kinds = [{k: v.get(k) for k in ("type", "anyOf", "$ref")} for v in
                 (before[field], after[field])]  # fmt: skip
        gone = set(before[field].get("enum", ())) - set(after[field].get("enum", ()))
        if kinds[0] != kinds[1] or gone:
            found.append(f"{name}.{field} is of another kind")
    return found


def main(arguments: list[str]) -> int:
    """Write `docs/openapi.json`; 1 if that would break a client."""
    now = described()
    found = breaks(json.loads(PROMISED.read_text()), now) if PROMISED.exists() else []
    if found and "--break" not in arguments:
        print("this breaks clients:", *found, "write it nevertheless with --break", sep="\n  ")
        return 1
    PROMISED.write_text(json.dumps(now, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
