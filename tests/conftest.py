"""What every test shares: shape checking, the golden pack, determinism."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

# Without a GPU the kernels run under Triton's interpreter, which reads this at import.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Shape annotations become checks. Kernels stay out: Triton reads their source.
install_import_hook(
    ["evofeed.features", "evofeed.featurize", "evofeed.store", "evofeed.loader", "evofeed.trainer"],
    "beartype.beartype",
)

_DEFAULT_GOLDEN = Path(__file__).resolve().parent.parent.parent / "shared" / "golden"


def golden_root() -> Path | None:
    """The golden pack's folder (with `data/` and `model/`), or None where there is none."""
    root = Path(os.environ.get("EVOFEED_GOLDEN") or _DEFAULT_GOLDEN)
    return root if (root / "data").is_dir() and (root / "model").is_dir() else None


def golden_files(pattern: str) -> list[Path]:
    """Golden files matching a pattern below the pack's root, for parametrize."""
    root = golden_root()
    return sorted(root.glob(pattern)) if root else []


@pytest.fixture(scope="session")
def golden() -> Path:
    """The golden pack; absent packs skip here and fail in CI (EVOFEED_REQUIRE=golden)."""
    root = golden_root()
    if root is None:
        if "golden" in os.environ.get("EVOFEED_REQUIRE", ""):
            pytest.fail("the golden pack is required but EVOFEED_GOLDEN holds none")
        pytest.skip("no golden pack: set EVOFEED_GOLDEN to a folder with data/ and model/")
    return root
