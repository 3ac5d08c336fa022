"""`check_input` reports the faults of an input before a job is started."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest
from tests.conftest import evofeed
from tests.featurize.golden import INPUTS
from tests.featurize.test_layouts import as_downloaded, flattened, small_chains, structure_of
from tests.loader.views.packs import packs

from evofeed.base.errors import InputError
from evofeed.featurize import check_input, discover, featurize_chain
from evofeed.featurize.structures.structure_files import parse_structure


def chains_of(file: Path) -> list[str]:
    """Protein chains of a structure file, none if it cannot be read."""
    try:
        return list(parse_structure(file.read_bytes(), file.name).sequences)
    except InputError:
        return []


def test_a_good_input_has_no_errors(golden: Path) -> None:
    report = check_input(str(INPUTS[0]))
    assert report.ok and report.chains == report.with_alignments > 0
    assert report.findings["no structure"].count == report.chains - report.with_structure
    assert json.loads(json.dumps(report.to_dict()))["ok"] is True


def test_every_fault_is_counted_with_an_example(tmp_path: Path, golden: Path) -> None:
    flattened(tmp_path)
    good, other = (folder.name for folder in small_chains())
    alignments = tmp_path / "alignments"
    entry, _, chain = good.rpartition("_")
    (alignments / f"{entry.swapcase()}_{chain}").mkdir()  # case collision, no alignment
    (alignments / "9zzz_A").mkdir()  # nothing at all
    (alignments / "bad id").mkdir()
    shutil.copytree(alignments / good, alignments / f"{good[:4]}_Q")  # no such chain
    for file in (alignments / other).iterdir():
        file.unlink()
    (alignments / other / "a.a3m").write_text(">q\nACDEF\n")  # another protein
    (alignments / other / "extra.a3m").write_text("")
    lone = next(f for f in INPUTS[0].glob("mmcif/*.cif") if len(chains_of(f)) == 1)
    shutil.copy(lone, tmp_path / "data")
    shutil.copytree(alignments / good, alignments / f"{lone.stem}_QQ")  # nor in an entry of one
    report = check_input(str(tmp_path))
    kinds = report.findings
    assert not report.ok
    assert good in kinds["ids differ only in case"].examples[0]
    assert "9zzz_A" in kinds["no structure, sequence or alignment"].examples
    assert "bad id" in kinds["bad id or unreadable file"].examples[0]
    missing = kinds["chain is not in its structure"].examples
    assert any("_Q:" in example for example in missing)
    assert any("_QQ:" in example for example in missing)
    assert "5 residues" in kinds["query and structure differ in length"].examples[0]
    assert "extra.a3m" in kinds["chain cannot be featurized"].examples[0]
    assert report.sorted_findings()[0].severity == "error"


def test_unflattened_trees_are_noticed(tmp_path: Path, golden: Path) -> None:
    as_downloaded(tmp_path)
    names = [folder.name for folder in small_chains()]
    findings = check_input(str(tmp_path)).findings
    assert findings["not flattened"].count == len(names)
    assert structure_of(small_chains()[0]).exists()


def test_what_each_all_atom_project_leaves_out_is_counted(tmp_path: Path) -> None:
    pack = packs()[0]
    path = pack / "inputs" / "mmcif" / "2x1f.cif.gz"
    (tmp_path / "one.cif.gz").write_bytes(path.read_bytes())
    text = gzip.decompress(path.read_bytes()).replace(b"_revision_history.", b"_other_history.")
    (tmp_path / "two.cif").write_bytes(text)
    (dictionary,) = (pack / "components").glob("components.cif*")
    words = ("check", tmp_path, "--components", dictionary)
    shown, counts = evofeed(*words).out, evofeed(*words, "--json").json["rulesets"]
    assert [project["entry"] for project in counts.values()] == [1, 2, 2]
    assert counts["openfold3"]["entry left out: no _pdbx_audit_revision_history"] == 1
    short = [project.get("chain G left out: a short polymer") for project in counts.values()]
    assert short == [1, 2, None]
    assert "boltz takes 2 entries" in shown and "2 x chain G left out: a short polymer" in shown


OTHER = {"1a4w": ("ligand", "KTH", "H"), "2q2k": ("DNA", "DA", "F"), "4zxb": ("glycan", "NAG", "E")}

FILES = {p.stem: p for root in INPUTS for p in root.glob("mmcif/*.cif") if p.stem in OTHER}


@pytest.mark.parametrize("name", sorted(OTHER.keys() & FILES.keys()))
def test_other_molecules_are_listed_by_component_and_chain(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.cif").symlink_to(FILES[name])
    report = check_input(str(tmp_path)).to_dict()
    (molecules,) = report["left_out"].values()
    kind, component, chain = OTHER[name]
    assert (kind, component, chain) in {(m["kind"], m["component"], m["chain"]) for m in molecules}
    if name == "1a4w":
        (source,) = [s for s in discover(tmp_path) if s.chain_id == "1a4w_H"]
        assert "ligand KTH (H)" in " ".join(featurize_chain(source).dropped)
