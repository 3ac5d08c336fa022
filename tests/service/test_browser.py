"""The dashboard in a real browser: styled, drawn, and nothing refused by its own policy."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from matplotlib.image import imread
from playwright.sync_api import Browser, Page, expect
from tests.service.conftest import Start

from evofeed.featurize import assembly_sources, discover, featurize_assembly
from evofeed.featurize.job.run import run_job
from evofeed.service import serving
from evofeed.service.access.auth import make_start_token
from evofeed.store import Dataset, add_assemblies
from evofeed.synth import write_synthetic

ACCENT = (0x17, 0x69, 0xAA)


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
    assert upper[:, :25].sum() == 0 and (pixels == 255).all(-1).mean() > 0.2


VIEWS = {
    "desktop": {"viewport": {"width": 1280, "height": 900}},
    "phone": {"viewport": {"width": 390, "height": 844}},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
}
PAGES = [
    "/",
    "/ui/datasets/demo?min_length=40&method=x-ray+diffraction",
    "/ui/datasets/demo/snapshots/main/chains/0004_A",
    "/ui/login",
]


@pytest.fixture(scope="module")
def complexes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with a simulated complex; gives the address of the page of complexes."""
    raw, data = (tmp_path_factory.mktemp("complexes") / name for name in ("raw", "data"))
    write_synthetic(raw, 1, stoichiometries=["A2B2"], mean_length=30, mean_depth=30)
    run_job(str(raw), str(data), executor="local", workers=1)
    (source,) = assembly_sources(discover(raw))
    dataset = Dataset.open(data)
    add_assemblies(dataset, [featurize_assembly(source, dataset.__getitem__)])
    with serving({"complexes": str(data)}) as url:
        yield f"{url}/ui/datasets/complexes/assemblies"


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_no_page_has_a_serious_fault_for_those_who_hear_or_tab(
    served, complexes: str, browser: Browser, view: str
) -> None:
    context = browser.new_context(**VIEWS[view])  # type: ignore[arg-type]
    page = context.new_page()
    faults, said = [], []
    page.on("console", lambda one: said.append(one.text) if one.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    entry = httpx.get(complexes).text.rpartition("/assemblies/")[2][:4]
    of_one = f"{complexes.replace('/assemblies', '/snapshots/main/assemblies')}/{entry}"
    for path in [*(f"{served.url}{path}" for path in PAGES), complexes, of_one]:
        answer = page.goto(path)
        assert answer is not None and answer.status == 200, path
        page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
        found = Axe().run(page).response["violations"]
        faults += [
            (path, one["id"], [node["html"][:120] for node in one["nodes"]][:3])
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{path} scrolls sideways by {wide}"
    context.close()
    assert not faults
    assert not said


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Raw files of some chains, one of them broken."""
    write_synthetic(tmp_path / "raw", 6, seed=0)
    bad = tmp_path / "raw" / "alignments" / "9bad_A"
    bad.mkdir(parents=True)
    (bad / "uniref90_hits.a3m").write_text(">q\nAC1EF\n")
    return tmp_path / "raw"


def _submit(page: Page, raw: Path, message: str) -> str:
    page.get_by_text("Submit a job").click()
    page.get_by_label("raw files").fill(str(raw))
    page.get_by_label("workers").fill("1")
    page.get_by_label("share that may break").fill("1")
    page.get_by_label("why").first.fill(message)
    page.get_by_role("button", name="submit").click()
    expect(page.get_by_role("heading", name="Job ")).to_be_visible()
    return page.url


@pytest.mark.slow
def test_a_scientist_submits_watches_looks_and_cancels(
    start: Start, browser: Browser, raw: Path, tmp_path: Path
) -> None:
    roots = (str(tmp_path),)
    client = start(
        auth="auto",
        dataset_roots=roots,
        input_roots=roots,
        max_jobs=1,
        datasets={"mine": str(tmp_path / "mine")},
    )
    token = make_start_token(start.database())
    context = browser.new_context(**VIEWS["desktop"])  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(120_000)
    said: list[str] = []
    page.on("console", lambda one: said.append(one.text) if one.type == "error" else None)
    page.goto(f"{client.base_url}")
    page.get_by_label("token").fill(token)
    page.get_by_role("button", name="sign in").click()
    assert all(token not in str(cookie) for cookie in context.cookies())

    page.get_by_role("link", name="mine").first.click()
    first = _submit(page, raw, "the first")
    page.evaluate("window.stays = true")  # gone with a reload

    other = context.new_page()  # one at a time works on a dataset: the other job waits
    other.goto(f"{client.base_url}/ui/datasets/mine".replace("//ui", "/ui"))
    _submit(other, raw, "the other")
    other.get_by_role("button", name="cancel").click()
    expect(other.locator(".facts .state")).to_have_text("cancelled", timeout=120_000)

    expect(page.locator(".facts .state")).to_have_text("succeeded", timeout=240_000)
    assert page.url == first and page.evaluate("window.stays"), "it was reloaded"
    expect(page.locator("tr", has_text="9bad_A").first).to_contain_text("is no residue letter")
    expect(page.locator(".log")).to_contain_text("attempt 1")

    page.get_by_role("link", name="mine").first.click()
    page.locator("table a[href*='/chains/']").first.click()
    expect(page.locator("[data-alignment] canvas")).to_be_visible()
    page.locator("[data-structure]").scroll_into_view_if_needed()
    expect(page.locator("[data-structure] canvas")).to_be_visible(timeout=60_000)
    assert page.locator(".plot .main-svg").count() >= 2, "bars and the map are drawn"
    page.get_by_role("button", name="sign out").click()
    expect(page).to_have_url(f"{client.base_url}/ui/login".replace("//ui", "/ui"))
    context.close()
    assert not said
