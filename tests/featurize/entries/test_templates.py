"""Hits among the alignments of entries become templates, by the date of each entry."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.synthetic_entries import prepare_again

from evofeed.base.errors import InputError
from evofeed.featurize.entries import job
from evofeed.featurize.entries.alignments import alignment_folders, read_alignment
from evofeed.featurize.entries.templates import with_templates
from evofeed.featurize.records.template_library import FolderUse
from evofeed.featurize.structures.components import read_components
from evofeed.loader import EntryConfig, LoaderConfig
from evofeed.loader.entries.catalog import EntryCatalog
from evofeed.loader.entries.reading import plan_entry
from evofeed.protein.components import ComponentTable
from evofeed.protein.residues import GAP, RESTYPES
from evofeed.store import Dataset
from evofeed.synth import write_entries
from evofeed.synth.entries import sequence_of, simulated_entities
from evofeed.synth.formats import Hit, hhr

SEQUENCE = sequence_of(simulated_entities(0)[0])
PIECE = slice(1, 21)
"""Columns of the hit: a longer one counts as the query itself by AlphaFold's rules."""


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """An entry, and a hit of its protein on the structure of the same entry."""
    write_entries(tmp_path, 1)
    query = np.array([RESTYPES.index(letter) for letter in SEQUENCE], np.uint8)
    template = np.full_like(query, GAP)
    template[PIECE] = query[PIECE]
    hits = [
        Hit(name=name, description="x", query=query, template=template, prob=90.0)
        for name in ("s000_A", "9zzz_A")
    ]
    (tmp_path / "msa" / "s000_1" / "pdb70_hits.hhr").write_text(hhr("q", query, 1, hits))
    return tmp_path


def test_hits_become_templates_that_entries_released_later_get(raw: Path, inside: None) -> None:
    options = {"projects": ("openfold3", "protenix"), "templates": str(raw / "mmcif")}
    report = prepare_again(raw, raw / "data", **options)
    assert report.state == "published"
    assert tuple(report.notes["alignment-s000_1"]) == (
        "1 template hit passed over, e.g. 9zzz_A: no structure file",
        "protenix: 1 template hits passed over: no structure file",
    )
    entries = Dataset.open(str(raw / "data")).entries
    (file, *_), *_ = alignment_folders(raw / "msa")
    alignment = entries.alignment(read_alignment([file]).name)
    templates = alignment.templates
    assert templates is not None and alignment.query == SEQUENCE
    assert (templates.name, templates.date) == (("s000_A",), ("2020-01-15",))
    letters = "".join((RESTYPES + "X-")[code] for code in templates.restype[0])
    assert letters == "-" + SEQUENCE[PIECE] + "-" * (len(SEQUENCE) - 21)
    has_atoms = np.isfinite(templates.position[0]).all(-1)
    assert has_atoms[:, :3].all(1).tolist() == [i in range(1, 21) and i != 2 for i in range(24)]
    assert has_atoms[3:21, 3].all()  # CA in place of glycine's CB
    record = entries["s000-1"]
    atoms = record.atom_position[record.atom_name == "CA"][:23]  # residue 3 has none
    assert np.allclose(
        np.linalg.norm(np.diff(templates.position[0, 3:21, 1], axis=0), axis=1),
        np.linalg.norm(np.diff(atoms[2:20], axis=0), axis=1),
        atol=1e-3,
    )
    hits = alignment.hits
    assert hits is not None and (hits.name, hits.date) == (("s000_A",), ("2020-01-15",))
    assert not np.isnan(hits.atoms(0)[hits.seen[0]]).any()
    for days, expected in ((0, True), (60, False)):
        rules = EntryConfig.openfold3(templates_before_days=days)
        catalog = EntryCatalog(entries, 0, LoaderConfig(entries=rules))
        location = catalog.location(int(catalog.rows[0]))
        packed = [plan_entry(entries.dataset.storage, location, key, rules)[0] for key in range(8)]
        assert any("_template_restype" in sample for sample in packed) == expected
        rules = EntryConfig.protenix(templates_before_days=days, templates=True)
        catalog = EntryCatalog(entries, 0, LoaderConfig(entries=rules))
        location = catalog.location(int(catalog.rows[0]))
        packed = [plan_entry(entries.dataset.storage, location, key, rules)[0] for key in range(8)]
        assert any(np.isfinite(sample["_template_position"]).any() for sample in packed) == expected


@pytest.mark.parametrize(
    ("file", "content", "project", "message"),
    [
        ("mmcif/release_date_cache.json", "[1]", "protenix", "not a table of entries"),
        ("mmcif/release_date_cache.json", '{"1abc": {"release_date": ""}}', "protenix", None),
        ("mmcif/s000_1.npz", "x", "openfold3", "no readable npz"),
        ("mmcif/s000_1.npz", {"s000_A": {"index": 0}}, "openfold3", "release_date"),
        ("mmcif/s000_1.npz", {"s000_A": 7}, "openfold3", "not a template cache of OpenFold3"),
        ("msa/s000_1/concat.hhr", "No 1\n>x", "protenix", "a hit needs its number"),
    ],
)
def test_an_error_in_a_file_of_templates_names_the_file(
    raw: Path, file: str, content: Any, project: str, message: str | None
) -> None:
    if isinstance(content, dict):
        np.savez(raw / file, **{k: np.array(v, object) for k, v in content.items()})
    else:
        (raw / file).write_text(content)
    (files,) = alignment_folders(raw / "msa")
    arguments = read_alignment(files), files, str(raw / "mmcif"), [project], ComponentTable({})
    arguments += (FolderUse(),)
    if message is None:
        _, notes = with_templates(*arguments)
        assert any("not in release_date_cache.json" in line for line in notes)
        return
    with pytest.raises(InputError, match=message) as error:
        with_templates(*arguments)
    assert Path(file).name in str(error.value)


def test_hits_are_not_rows_of_an_alignment(raw: Path) -> None:
    (files,) = alignment_folders(raw / "msa")
    assert Path(files[-1]).name == "pdb70_hits.hhr"
    assert read_alignment(files).sources == ("uniprot_hits", "uniref90_hits")


def test_mmcif_files_next_to_a_template_cache_replace_its_arrays_of_atoms(raw: Path) -> None:
    number = np.arange(len(SEQUENCE)) + 1
    hit = {"index": 0, "release_date": "2001-02-03", "idx_map": np.stack([number, number], 1)}
    np.savez(raw / "mmcif" / "s000_1.npz", s000_A=np.array(hit, object))
    (raw / "mmcif").rename(raw / "template_structures")
    (files,) = alignment_folders(raw / "msa")
    table, folder = read_components(raw / "components.cif"), str(raw / "template_structures")
    alignment, notes = with_templates(
        read_alignment(files), files, folder, ["openfold3"], table, FolderUse()
    )
    templates = alignment.templates
    assert notes == () and templates is not None and templates.date == ("2001-02-03",)
    letters = "".join((RESTYPES + "X-")[code] for code in templates.restype[0])
    assert letters.replace("X", "M") == SEQUENCE  # MSE
    has_atoms = np.isfinite(templates.position[0, :, 1]).all(-1)  # others have only a name
    assert len(SEQUENCE) // 2 < has_atoms.sum() < len(SEQUENCE)


CHANGES = yaml.safe_load(Path(__file__).with_name("template_changes.yaml").read_text())


def change(raw: Path, name: str = "", content: Any = None) -> None:
    """Write a file below a folder, or touch it."""
    path = raw / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, dict):  # arrays, and dictionaries as OpenFold3 keeps them
        kinds = {key: object if isinstance(value, dict) else None for key, value in content.items()}
        np.savez(path, **{key: np.array(value, kinds[key]) for key, value in content.items()})
    elif content is not None:
        path.write_text(content)
    elif name:
        os.utime(path, (1, 1))


def test_what_changed_or_came_since_is_done_again_and_nothing_else(
    raw: Path, inside: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_entries(raw, 2)
    (raw / "clusters").write_text("S000_1\nS001_1\n")
    shutil.copytree(raw / "mmcif", raw / "library")
    monkeypatch.setattr(job, "_UNIT_SIZES", {"entry": 1, "alignment": 1, "molecules": 99})
    options = {"projects": ("openfold3", "protenix"), "templates": str(raw / "library")}
    options |= {"clusters": str(raw / "clusters")}
    with monkeypatch.context() as patch:  # what changes while it runs is not published
        patch.setattr(
            job._Phase, "strike_repeated_entries", lambda _: change(raw, "library/s000.cif")
        )
        report = prepare_again(raw, raw / "data", conformers=1, **options)
    assert (report.state, report.snapshot) == ("failed", None)
    assert f"a template in {raw}/library changed while the job ran" in report.message
    assert prepare_again(raw, raw / "data", conformers=1, **options).state == "published"
    for name, (redone, *changed) in CHANGES.items():
        change(raw, *changed)
        report = prepare_again(raw, raw / "data", conformers=1, **options)
        assert (name, report.units - report.resumed) == (name, redone)
        assert bool(report.broken) == ("damaged" in name), report.broken
    fresh = prepare_again(raw, raw / "fresh", conformers=1, **options)
    tables = [Dataset.open(str(raw / name)).entries for name in ("data", "fresh")]
    assert tables[0].records.equals(tables[1].records) and report.notes == fresh.notes
    again = prepare_again(raw, raw / "data", conformers=2, **options)
    assert (again.units, again.resumed) == (5, 2), "alignments have no conformers"
    monkeypatch.setattr(job, "conformer_version", lambda: "0.0")
    again = prepare_again(raw, raw / "data", conformers=2, **options)
    assert again.resumed == 0 and again.snapshot != fresh.snapshot
    assert Dataset.open(str(raw / "data")).manifest.config["entries"]["rdkit"] == "0.0"
