"""The pages in a real browser: drawn, and nothing refused by their own policy."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, unquote

import httpx
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from matplotlib.image import imread
from playwright.sync_api import Browser, Page, expect
from tests.inside import units_inside
from tests.service.conftest import Start, make_record
from tests.store.records import published, random_record

from evofeed.featurize import assembly_sources, discover, featurize_assembly
from evofeed.featurize.job.run import run_job
from evofeed.protein.residues import RESTYPES
from evofeed.service import serving
from evofeed.service.access.auth import make_start_token
from evofeed.service.jobs.queue import FAILED, JobQueue
from evofeed.store import Dataset, DatasetWriter, add_assemblies
from evofeed.synth import write_synthetic

pytestmark = pytest.mark.slow
expect.set_options(timeout=120_000)  # a machine may stand still for seconds
RESIDUES, ROWS = 520, 400
VIEWS = {
    "desktop": {"viewport": {"width": 1280, "height": 900}},
    "phone": {"viewport": {"width": 375, "height": 812}},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
}
PAGES = [
    "/",
    "/ui/datasets/demo?min_length=40&method=x-ray+diffraction",
    "/ui/datasets/demo/snapshots/main/chains/0004_A",
    "/ui/login",
]


def watched(page: Page) -> list[str]:
    """What goes wrong on a page: errors, what its policy refuses, and requests to elsewhere."""
    said: list[str] = []

    def asked(url: str) -> None:
        if "127.0.0.1" not in url and not url.startswith(("data:", "blob:", "file:")):
            said.append(url)

    page.on("console", lambda one: said.append(one.text) if one.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda one: asked(one.url))
    return said


@pytest.fixture(scope="module")
def complexes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with a simulated complex; gives the address of the page of complexes."""
    raw, data = (tmp_path_factory.mktemp("complexes") / name for name in ("raw", "data"))
    write_synthetic(raw, 1, stoichiometries=["A2B2"], mean_length=30, mean_depth=30)
    with units_inside():
        run_job(str(raw), str(data))
    (source,) = assembly_sources(discover(raw))
    dataset = Dataset.open(data)
    add_assemblies(dataset, [featurize_assembly(source, dataset.__getitem__)])
    with serving({"complexes": str(data)}) as url:
        yield f"{url}/ui/datasets/complexes?table=assemblies"


def test_no_page_has_a_serious_fault_for_those_who_hear_or_tab(
    served, complexes: str, browser: Browser
) -> None:
    """Nor scrolls sideways, on a phone or a desk; in the dark it is colours that differ."""
    context = browser.new_context(**VIEWS["phone"])  # type: ignore[arg-type]
    page, faults = context.new_page(), []
    said = watched(page)
    entry = httpx.get(complexes, timeout=300).text.rpartition("/assemblies/")[2][:4]
    of_one = f"{complexes.replace('?table=assemblies', '/snapshots/main/assemblies')}/{entry}"
    for path in [*(f"{served.url}{path}" for path in PAGES), complexes, of_one]:
        page.set_viewport_size(VIEWS["phone"]["viewport"])  # type: ignore[arg-type]
        answer = page.goto(path)
        assert answer is not None and answer.status == 200, path
        page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")  # every figure is drawn
        expect(page.locator("[data-figure]:not(.js-plotly-plot)")).to_have_count(0)
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{path} scrolls sideways by {wide}"
        page.set_viewport_size(VIEWS["desktop"]["viewport"])  # type: ignore[arg-type]
        page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")
        for scheme, rules in (("light", None), ("dark", {"runOnly": ["color-contrast"]})):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            faults += [
                (path, scheme, one["id"], [node["html"][:120] for node in one["nodes"]][:3])
                for one in Axe().run(page, options=rules).response["violations"]
                if one["impact"] in ("serious", "critical")
            ]
    context.close()
    assert not faults
    assert not said


EVIL = "<img src=x class=evil onerror=\"document.title='run'\">'}}</script>"


def _hostile(start: Start, folder: Path) -> str:
    """The address of a service with somebody else's words wherever it shows some."""
    writer = DatasetWriter(str(folder / "data"))
    record = make_record(3)
    hostile = {"msa_sources": (EVIL,), "description": EVIL, "method": EVIL}
    hostile |= {"dropped": (EVIL,), "inputs": {EVIL: "0" * 64}, "config_digest": EVIL}
    xyz = np.random.default_rng(0).normal(size=[record.num_res, 37, 3]).astype(np.float32)
    mask = np.ones([record.num_res, 37], np.uint8)
    drawn = {"all_atom_positions": xyz, "all_atom_mask": mask}
    words = {"msa_species": (EVIL,) * record.num_alignments}
    writer.add(replace(record, **hostile, **drawn, **words))
    writer.add(replace(make_record(4), **hostile))
    dropped = [{"chain_id": EVIL, "reason": EVIL, "path": EVIL}]
    digest = writer.commit("main", config={EVIL: EVIL}, dropped=dropped).digest
    client = start(datasets={"gone": str(folder / EVIL.replace("/", ""))})
    new = {"name": "x", "uri": str(folder / "data"), "description": EVIL}
    assert client.post("/v1/datasets", json=new).status_code == 201
    move = {"digest": digest, "message": EVIL}
    tag = {"If-None-Match": "*"}
    assert client.put("/v1/datasets/x/refs/v1", json=move, headers=tag).status_code == 200
    queue = JobQueue(start.database, 100)
    new = {"dataset": "x", "input_uri": f"/{EVIL.replace('/', '')}", "message": EVIL}
    job = client.post("/v1/jobs", json=new).json()["id"]
    assert queue.claim(1) == job
    kinds = [{"kind": kind, "chain_id": EVIL, "type": EVIL, "message": EVIL, "path": EVIL}
             for kind in ("broken", "note")]  # fmt: skip
    queue.keep_log(job, EVIL)
    queue.end(job, FAILED, error=EVIL, result={EVIL: EVIL}, chains=kinds)
    return start.url


def test_what_others_wrote_runs_on_no_page(
    start: Start, browser: Browser, tmp_path: Path, jobs_wait: None
) -> None:
    """Every page that links lead to is opened; what others wrote is text on it."""
    url = _hostile(start, tmp_path)
    page = browser.new_page()
    said = watched(page)
    page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
    shown: dict[str, int] = {}
    wait = ["/", "/ui/datasets/x?ref=v1", f"/ui/datasets/x?q={quote(EVIL)}"]
    while wait:
        path = wait.pop()
        bare = path if EVIL in unquote(path) else path.partition("?")[0]
        if bare in shown:
            continue
        answer = page.goto(f"{url}{path}")
        assert answer is not None and answer.status == 200, path
        page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
        page.wait_for_load_state("networkidle")
        assert page.locator(".evil").count() == 0 and page.title() != "run", path
        shown[bare] = page.locator("body").inner_text().count(EVIL)
        links = page.eval_on_selector_all("a[href]", "all => all.map(a => a.getAttribute('href'))")
        links = [link for link in links if link.startswith("/ui/") and "/files/" not in link]
        wait += [link for link in links if EVIL not in unquote(link)]
    page.close()
    assert not said
    assert sum(count > 0 for count in shown.values()) >= 4, shown
    assert len(shown) >= 5, "home, a dataset, two chains, a job"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Raw files of some chains, one of them broken."""
    write_synthetic(tmp_path / "raw", 6, seed=0)
    bad = tmp_path / "raw" / "alignments" / "9bad_A"
    bad.mkdir(parents=True)
    (bad / "uniref90_hits.a3m").write_text(">q\nAC1EF\n")
    return tmp_path / "raw"


def test_a_scientist_submits_watches_looks_and_cancels(
    start: Start, browser: Browser, raw: Path, tmp_path: Path, jobs_wait: None
) -> None:
    roots = (str(tmp_path),)
    start(auth="auto", input_roots=roots, datasets={"mine": str(tmp_path / "mine")})
    token = make_start_token(start.database)
    context = browser.new_context(**VIEWS["desktop"])  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(120_000)
    said, state = watched(page), page.locator(".facts .state")
    page.goto(start.url)
    page.get_by_label("token").fill(token)
    page.get_by_role("button", name="sign in").click()
    assert all(token not in str(cookie) for cookie in context.cookies())

    page.get_by_role("link", name="mine").first.click()
    page.get_by_text("Submit a job").click()
    for label, text in (
        ("raw files", str(raw)), ("workers", "1"), ("share of chains", "1"), ("message", "first"),
    ):  # fmt: skip
        page.get_by_label(label).first.fill(text)
    page.get_by_role("button", name="submit").click()
    expect(page.get_by_role("heading", name="Job ")).to_be_visible()
    expect(state).to_have_text("queued")
    first = page.url
    page.evaluate("window.stays = true")  # gone with a reload
    start.work_off()
    expect(state).to_have_text("succeeded")
    assert page.url == first and page.evaluate("window.stays"), "it was reloaded"
    expect(page.locator("tr", has_text="9bad_A").first).to_contain_text("is not a residue letter")
    page.get_by_role("button", name="retry").click()
    page.get_by_role("button", name="cancel").click()
    expect(state).to_have_text("cancelled")

    page.get_by_role("link", name="mine").first.click()
    page.locator("table a[href*='/chains/']").first.click()
    expect(page.locator("[data-alignment] canvas")).to_be_visible()
    page.get_by_role("button", name="sign out").click()
    expect(page).to_have_url(f"{start.url}/ui/login")
    context.close()
    assert not said


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a page of a long chain; residue 100 of its query is W."""
    folder = str(tmp_path_factory.mktemp("long"))
    record = random_record(1, num_res=RESIDUES, num_alignments=ROWS, num_templates=0)
    msa, aatype = record.msa.copy(), record.aatype.copy()
    msa[0, 99] = aatype[99] = RESTYPES.index("W")
    sequence = f"{record.sequence[:99]}W{record.sequence[100:]}"
    published(folder, [replace(record, msa=msa, aatype=aatype, sequence=sequence)])
    with serving({"demo": folder}) as url:
        yield f"{url}/ui/datasets/demo/snapshots/main/chains/{record.chain_id}"


def colours_of(page: Page, selector: str) -> set[tuple[int, ...]]:
    """The colours on a part of a page, in steps of 32, that more than 1 pixel in 500 has."""
    pixels = imread(io.BytesIO(page.locator(selector).screenshot()))[..., :3]
    found, count = np.unique((pixels * 7.99).astype(int).reshape(-1, 3), axis=0, return_counts=True)
    return {tuple(row) for row in found[count > pixels[..., 0].size / 500].tolist()}


def test_letters_and_values_are_under_the_pointer_and_residues_count_from_one(
    address: str, browser: Browser
) -> None:
    page = browser.new_page(**VIEWS["desktop"])  # type: ignore[arg-type]
    said, sent = watched(page), page.goto(address)
    assert sent is not None
    assert not re.search("<script[^>]+src=[^>]*plotly", sent.text()), "it is read for a figure"
    canvas = page.locator("[data-alignment] canvas")
    page.locator("[data-alignment] .scroller").evaluate("e => { e.scrollLeft = 14 * 95; }")
    page.wait_for_function("document.querySelector('[data-alignment] .scroller').scrollLeft > 1000")
    canvas.hover(position={"x": 52 + 14 * 4 + 7, "y": 64 + 7})  # its left column is residue 96
    expect(page.locator("[data-alignment] output")).to_have_text("row 1, residue 100: W (query W)")
    assert len(colours_of(page, "[data-alignment] canvas")) > 8
    page.locator("[data-alignment] .scroller").evaluate("e => { e.scrollTop = 14 * 390; }")
    canvas.hover(position={"x": 300, "y": 200})
    expect(page.locator("[data-alignment] output")).to_contain_text("row 3")
    chart = page.locator("figure", has_text="distances between residues")
    chart.scroll_into_view_if_needed()
    across = chart.locator(".js-plotly-plot").evaluate("e => e.data[0].x")
    assert across[0] == 1 and across[-1] == RESIDUES and len(across) == 512
    page.close()
    assert not said


def test_a_structure_is_drawn_in_every_style(complexes: str, browser: Browser) -> None:
    page = browser.new_page(device_scale_factor=0.5)  # without a GPU each pixel takes its time
    said, base = watched(page), complexes.replace("?table=assemblies", "")
    chain = re.findall(r'/chains/(\w+)"', httpx.get(base).text)[0]
    page.goto(f"{base}/snapshots/main/chains/{chain}")
    page.locator("[data-structure]").scroll_into_view_if_needed()
    expect(page.locator("[data-structure] canvas")).to_be_visible()
    for style in ("cartoon", "sticks", "surface"):
        page.locator("[data-structure] select").first.select_option(style)
        page.locator("[data-structure] select").last.select_option("along the chain")
        assert coloured(page) > 0.002, style
    found = Axe().run(page).response["violations"]
    assert not [one["id"] for one in found if one["impact"] in ("serious", "critical")]
    page.close()
    assert not said


def coloured(page: Page) -> float:
    """The share of the viewer's pixels that are no grey, once some are; software draws slowly."""
    for _ in range(60):
        page.wait_for_timeout(1000)
        shot = page.locator("[data-structure] .view").screenshot()
        pixels = imread(io.BytesIO(shot))[30:-50, 50:-30, :3]  # without buttons and axes
        share = float(((pixels.max(-1) - pixels.min(-1)) > 0.25).mean())
        if share > 0.002:
            break
    return share
