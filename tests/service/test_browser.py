"""The dashboard in a real browser: styled, drawn, and nothing refused by its own policy."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

ACCENT = (0x17, 0x69, 0xAA)


@pytest.fixture(scope="module")
def chromium() -> str:
    found = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if found is None:
        if "browser" in os.environ.get("EVOFEED_REQUIRE", ""):
            pytest.fail("a browser is required but there is no chromium")
        pytest.skip("no chromium here")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/ui/datasets/demo"])
def test_a_page_looks_as_it_should(served, chromium: str, tmp_path: Path, path: str) -> None:
    picture = tmp_path / "page.png"
    done = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         f"--user-data-dir={tmp_path / 'profile'}", "--force-prefers-reduced-motion",
         "--enable-logging=stderr", "--window-size=1200,900", f"--screenshot={picture}",
         f"{served.url}{path}"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Refused to" not in done.stderr and "Content Security Policy" not in done.stderr
    pixels = (imread(picture)[..., :3] * 255).round().astype(np.uint8)
    bars = (pixels == ACCENT).all(-1)
    # Charts in three columns: bars in each third of the upper half, none in the margins.
    upper = bars[150:600]
    for third in range(3):
        assert upper[:, 50 + third * 370 : 400 + third * 370].sum() > 1000
    assert upper[:, :45].sum() == 0 and (pixels == 255).all(-1).mean() > 0.2
