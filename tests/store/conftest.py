"""What the store's tests share."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

# importlib mode gives test folders no package; this makes their helper importable.
_path = Path(__file__).with_name("records.py")
_spec = importlib.util.spec_from_file_location("store_records", _path)
assert _spec is not None and _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules["store_records"] = _module
_spec.loader.exec_module(_module)
