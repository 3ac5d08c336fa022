"""The page of a chain in a browser: its parts are drawn, and a long one is there soon."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from matplotlib.image import imread
from playwright.sync_api import Browser, Page, expect
from tests.service.conftest import make_record

from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import ATOM_ORDER, RESTYPES
from evofeed.service import serving
from evofeed.store import DatasetWriter

RESIDUES, ROWS = 2_000, 10_000


def helix(chain_id: str, residues: int, rows: int) -> ChainRecord:
    """A helix, its backbone and CB atoms alone; residue 100 of the query is W."""
    rng = np.random.default_rng(0)
    msa = rng.integers(0, 20, [rows, residues]).astype(np.uint8)
    msa[rng.random(msa.shape) < 0.3] = 21
    msa[0] = rng.integers(0, 20, residues)
    msa[0, 99:100] = RESTYPES.index("W")
    positions, mask = np.zeros([residues, 37, 3], np.float32), np.zeros([residues, 37], np.uint8)
    turn = np.radians(100.0) * np.arange(residues)
    for atom, radius, ahead, rise in (
        ("N", 1.55, -0.46, -0.9), ("CA", 2.3, 0.0, 0.0), ("C", 1.65, 0.46, 1.1),
        ("O", 2.0, 0.5, 2.3), ("CB", 3.3, -0.3, -0.4),
    ):  # fmt: skip
        at = ATOM_ORDER[atom]
        angle = turn + ahead
        height = 1.5 * np.arange(residues) + rise
        positions[:, at] = np.stack([height, radius * np.cos(angle), radius * np.sin(angle)], -1)
        mask[:, at] = 1
    return replace(
        make_record(0), chain_id=chain_id, sequence="".join(RESTYPES[code] for code in msa[0]),
        aatype=msa[0], residue_index=np.arange(residues, dtype=np.int32), msa=msa,
        msa_source=np.zeros(rows, np.uint8), msa_species=("",) * rows,
        hhblits_profile_counts=np.zeros([residues, 22], np.int32),
        template_aatype=np.zeros([0, residues], np.uint8),
        template_all_atom_positions=np.zeros([0, residues, 37, 3], np.float32),
        template_all_atom_mask=np.zeros([0, residues, 37], np.uint8),
        all_atom_positions=positions, all_atom_mask=mask,
    ).validate()  # fmt: skip


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory):
    folder = str(tmp_path_factory.mktemp("long"))
    writer = DatasetWriter(folder)
    writer.add(helix("long_A", RESIDUES, ROWS))
    writer.add(helix("short_A", 50, 3))
    writer.commit("main")
    with serving({"demo": folder}) as url:
        yield f"{url}/ui/datasets/demo/snapshots/main/chains/long_A"


@pytest.fixture
def page(browser: Browser):
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    said: list[str] = []
    opened.on("console", lambda one: said.append(one.text) if one.type == "error" else None)
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda one: said.append(one.url) if "127.0.0.1" not in one.url
              and not one.url.startswith(("data:", "blob:")) else None)  # fmt: skip
    yield opened
    opened.close()
    assert not said


def colours_of(page: Page, selector: str) -> set[tuple[int, ...]]:
    """The colours on a part of a page, in steps of 32, that more than 1 pixel in 500 has."""
    pixels = imread(io.BytesIO(page.locator(selector).screenshot()))[..., :3]
    found, count = np.unique((pixels * 7.99).astype(int).reshape(-1, 3), axis=0, return_counts=True)
    return {tuple(row) for row in found[count > pixels[..., 0].size / 500].tolist()}


@pytest.mark.slow
def test_a_page_of_2000_residues_and_10000_rows_loads_in_two_seconds(
    address: str, page: Page
) -> None:
    seconds = []
    for _ in range(5):  # the fastest: other programs run beside the test
        page.goto(address)
        took = "performance.getEntriesByType('navigation')[0].loadEventEnd"
        page.wait_for_function(f"{took} > 0")
        seconds.append(page.evaluate(took) / 1000)
    assert min(seconds) < 2.0, seconds


@pytest.mark.slow
def test_letters_and_values_are_under_the_pointer_and_residues_count_from_one(
    address: str, page: Page
) -> None:
    page.goto(address)
    canvas = page.locator("[data-alignment] canvas")
    page.locator("[data-alignment] .scroller").evaluate("e => { e.scrollLeft = 14 * 95; }")
    page.wait_for_function("document.querySelector('[data-alignment] .scroller').scrollLeft > 1000")
    canvas.hover(position={"x": 52 + 14 * 4 + 7, "y": 64 + 7})  # its left column is residue 96
    expect(page.locator("[data-alignment] output")).to_have_text("row 1, residue 100: W (query W)")
    assert len(colours_of(page, "[data-alignment] canvas")) > 8
    page.locator("[data-alignment] .scroller").evaluate("e => { e.scrollTop = 14 * 9990; }")
    canvas.hover(position={"x": 300, "y": 200})
    expect(page.locator("[data-alignment] output")).to_contain_text("row 99")
    chart = page.locator("figure", has_text="distances between residues")
    first = "(e) => e.querySelector('[data-figure]').data[0].x"
    across = chart.evaluate(first)
    assert across[0] == 1 and across[-1] == RESIDUES and len(across) == 512


@pytest.mark.slow
def test_a_structure_is_drawn_in_every_style(address: str, page: Page) -> None:
    page.goto(address.replace("long_A", "short_A"))
    page.locator("[data-structure]").scroll_into_view_if_needed()
    expect(page.locator("[data-structure] canvas")).to_be_visible(timeout=120_000)
    for style in ("cartoon", "sticks", "surface"):
        page.locator("[data-structure] select").first.select_option(style)
        page.locator("[data-structure] select").last.select_option("along the chain")
        assert coloured(page) > 0.002, style
    found = Axe().run(page).response["violations"]
    assert not [one["id"] for one in found if one["impact"] in ("serious", "critical")]


def coloured(page: Page) -> float:
    """The share of the viewer's pixels that are no grey, once some are; software draws slowly."""
    for _ in range(60):
        page.wait_for_timeout(1000)
        shot = page.locator("[data-structure] .view").screenshot()
        pixels = imread(io.BytesIO(shot))[60:-100, 100:-60, :3]  # without buttons and axes
        share = float(((pixels.max(-1) - pixels.min(-1)) > 0.25).mean())
        if share > 0.002:
            break
    return share
