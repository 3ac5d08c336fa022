"""The projects' own code compared with ours, from mmCIF: the same features and losses.

`make projects` installs their wheels, as CI does. Their draws are recorded and replayed in ours.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import random
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gemmi
import numpy as np
import pytest
import torch
from tests.conftest import own_packages
from tests.featurize.entries.prepared_sets import with_query, write_protenix_set, write_set
from tests.featurize.records.allatom import (
    boltz_alignments,
    boltz_molecules,
    components,
    protenix_molecules,
    record,
)
from tests.loader.views import boltz_recorded, openfold3_recorded, protenix_recorded
from tests.loader.views.openfold3_recorded import flat
from tests.loader.views.own_openfold3 import WatchedDraws, openfold3_sample, our_view
from tests.loader.views.packs import (
    alignments_of,
    entry_view,
    name_codes,
    read,
    slotted,
    some_recordings,
)

from evofeed.featurize.entries.molecules import component_molecule
from evofeed.featurize.entries.templates import with_templates
from evofeed.featurize.records.rulesets.boltz import boltz_section
from evofeed.featurize.records.rulesets.protenix import protenix_section
from evofeed.featurize.records.template_library import FolderUse
from evofeed.loader import boltz_batch
from evofeed.loader.entries.batch import stacked
from evofeed.loader.views.boltz.features import boltz_features
from evofeed.loader.views.boltz.plan import plan_sample as plan_boltz
from evofeed.loader.views.boltz.tables import boltz_view
from evofeed.loader.views.config import BoltzConfig, OpenFold3Config, ProtenixConfig
from evofeed.loader.views.openfold3.features import openfold3_features
from evofeed.loader.views.openfold3.plan import plan_sample as plan_openfold3
from evofeed.loader.views.protenix.features import protenix_features
from evofeed.loader.views.protenix.plan import plan_sample as plan_protenix
from evofeed.loader.views.protenix.tables import protenix_view
from evofeed.protein.alignment import Alignment
from evofeed.protein.components import ComponentTable

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs
ENTRIES = 3


def smallest(project: str) -> list[Path]:
    return some_recordings(f"{project}/structure/*.npz", ENTRIES)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str, Any]]]:
    """Their random draws as (function, caller, result), with their packages importable."""
    own_packages(monkeypatch)
    draws: list[tuple[str, str, Any]] = []

    def watch(module: Any, name: str) -> None:
        function = getattr(module, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            value = function(*args, **kwargs)
            result = value.numpy().copy() if isinstance(value, torch.Tensor) else value
            draws.append((name, sys._getframe(1).f_code.co_name, result))
            return value

        monkeypatch.setattr(module, name, watched)

    for name in ("choice", "randint", "geometric", "uniform", "permutation"):
        watch(np.random, name)
    for name in ("random", "choice", "choices"):
        watch(random, name)
    for name in ("randn", "randn_like", "randint", "randperm"):
        watch(torch, name)
    np.random.seed(11)
    random.seed(11)
    torch.manual_seed(11)
    yield draws


def boltz_of(path: Path, folder: Path) -> Any:
    """Boltz's tokens of its prepared structure, read by Boltz's code."""
    types = import_module("boltz.data.types")
    write_set(folder, path.parents[2], [path.stem])
    (metadata,) = json.loads((folder / "manifest.json").read_text())["records"]
    structure = types.Structure.load(folder / "structures" / path.name)
    named = enumerate(chain["msa_id"] for chain in metadata["chains"])
    alignments = {r: types.MSA.load(folder / "msa" / f"{name}.npz") for r, name in named if name}
    data = types.Input(structure=structure, msa=alignments)
    return import_module("boltz.data.tokenize.boltz").BoltzTokenizer().tokenize(data)


def molecules_with_orders(pack: Path, codes: set[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Boltz's molecules with the atom orders that we prepare, and these in Boltz's format."""
    molecules, listed = boltz_molecules(pack), {}
    for code in codes:
        heavy = component_molecule(components(pack)[code], 1).molecule
        atom_rows = np.array([molecules[code].name.tolist().index(name) for name in heavy.name])
        orders = np.tile(np.arange(len(molecules[code].name)), (len(heavy.orders), 1))
        orders[:, atom_rows] = atom_rows[heavy.orders]
        molecules[code] = dataclasses.replace(molecules[code], orders=orders)
        listed[code] = heavy.orders.tolist(), [*map(tuple, name_codes(heavy.name).tolist())]
    return molecules, listed


@pytest.mark.parametrize("path", smallest("boltz"), ids=lambda path: path.stem)
@pytest.mark.slow
def test_boltz_makes_our_features_of_its_structure(
    path: Path, calls: list[tuple[str, str, Any]], tmp_path: Path
) -> None:
    pytest.importorskip("boltz", reason="make projects")
    pack = path.parent.parent.parent
    tokenized = boltz_of(path, tmp_path)
    config = BoltzConfig(max_tokens=128, max_atoms=1280, max_seqs=128, symmetries=True)
    chain = int(tokenized.tokens["asym_id"][0])
    cropper = import_module("boltz.data.crop.boltz").BoltzCropper(0, 40)
    crop = cropper.crop(tokenized, 128, np.random, max_atoms=1280, chain_id=chain)
    featurizer = import_module("boltz.data.feature.featurizer").BoltzFeaturizer()
    molecules, listed = molecules_with_orders(pack, set(tokenized.structure.residues["name"]))
    theirs = featurizer.process(
        crop, training=True, max_seqs=128, max_tokens=128, max_atoms=1280, pad_to_max_seqs=True,
        binder_pocket_conditioned_prop=0.3, binder_pocket_cutoff=6.0,
        binder_pocket_sampling_geometric_p=0.3, compute_symmetries=True,
        symmetries=listed,
    )  # fmt: skip
    entry = record(pack, path.stem)
    section = boltz_section(entry, components(pack))
    view = boltz_view(entry, section, molecules, boltz_alignments(path, section))
    alignments = boltz_recorded.alignments_of_view(pack, view)
    draws = boltz_recorded.RecordedDraws([(f"random.{n}", w, v) for n, w, v in calls])
    packed = plan_boltz(view, alignments, [chain], draws, config)
    ours = boltz_features(slotted(packed), config)
    assert not draws.calls
    assert_equal(ours, theirs)
    loss = import_module("boltz.model.loss.distogram").distogram_loss
    output = {"pdistogram": torch.randn(1, 128, 128, 64)}
    batches = [boltz_batch({"samples": [sample]}) for sample in (ours, theirs)]
    for name in ("chain_symmetries", "amino_acids_symmetries", "ligand_symmetries"):
        assert ours[name] == json.loads(json.dumps(theirs[name], default=int)), name
    assert_same_loss(loss(output, batch)[0] for batch in batches)
    permuted = import_module("boltz.data.feature.symmetry").minimum_symmetry_coords
    guess = torch.randn(1, 1280, 3)
    weights = {"nucleotide_weight": 5.0, "ligand_weight": 10.0}
    labels = [permuted(guess, batch, 0, **weights) for batch in batches]
    for mine, other in zip(*labels, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-4)


def assert_equal(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Asserts that all their tensors equal ours: integers exactly, floats within 1e-5."""
    tensors = {name: value for name, value in theirs.items() if isinstance(value, torch.Tensor)}
    assert tensors
    assert set(tensors) <= set(ours)
    for name, value in tensors.items():
        assert ours[name].shape == value.shape, name
        close = 1e-5 if value.is_floating_point() else 0
        mine, other = ours[name].double(), value.double()
        torch.testing.assert_close(mine, other, rtol=0, atol=close, msg=f"{name} differs")


def assert_same_loss(values: Iterable[torch.Tensor]) -> None:
    """Asserts that our features and theirs have the same finite loss."""
    ours, theirs = values
    assert torch.isfinite(ours)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("path", smallest("openfold3"), ids=lambda path: path.stem)
@pytest.mark.slow
def test_openfold3_makes_our_features_of_its_structure(
    path: Path, calls: list[tuple[str, str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openfold3", reason="make projects")
    view = our_view(path)
    point = str(view.chain_name[0])
    theirs = openfold3_sample(path, 128, point, tmp_path, monkeypatch)
    draws = WatchedDraws(view, calls)
    alignments = openfold3_recorded.recorded_alignments(path.parents[2], view)
    config = OpenFold3Config(token_budget=128)
    packed = plan_openfold3(view, alignments, (0,), draws, config)
    ours = openfold3_features(slotted(packed), config)
    assert not draws.calls
    assert_equal(flat(ours), flat(theirs))
    orders = theirs["ref_space_uid_to_perm"]
    assert list(orders) == list(ours["ref_space_uid_to_perm"])
    for uid, order in orders.items():
        assert torch.equal(ours["ref_space_uid_to_perm"][uid], torch.as_tensor(order))
    loss = import_module("openfold3.core.loss.distogram").all_atom_distogram_loss
    logits = torch.randn(1, 128, 128, 64)
    assert_same_loss(
        loss(stacked([sample]), logits, no_bins=64, bin_min=2.0, bin_max=22.0, eps=1e-9)[0]
        for sample in (ours, theirs)
    )


def protenix_of(path: Path, folder: Path) -> dict[str, Any]:
    """Protenix's prepared structure, read and tokenized by Protenix's code."""
    pipeline = import_module("protenix.data.pipeline.data_pipeline").DataPipeline
    write_protenix_set(folder / "set", path.parents[2], [path.stem])
    file = folder / "set" / "mmcif_bioassembly" / f"{path.stem}.pkl.gz"
    data: dict[str, Any] = pipeline.get_data_bioassembly(file)
    tokenizer = import_module("protenix.data.tokenizer").AtomArrayTokenizer
    return data | {"token_array": tokenizer(data["atom_array"]).get_token_array()}


def alignment_folders(pack: Path, entry: str, sequences: dict[str, str], root: Path) -> list[Any]:
    """Protenix's MSA featurizer over an entry's alignments of proteins and RNA, by sequence."""
    samples = sorted((pack / "protenix" / "samples").glob(f"{entry}.*.npz"))
    folders = {
        chain["entity"]: chain["alignment"]
        for sample in samples
        for chain in read(sample).meta["chains"].values()
        if chain.get("alignment")
    }
    tables: list[dict[str, Any]] = [{}, {}]
    for entity, folder in folders.items():
        is_rna = (pack / "inputs" / "msa" / folder / "rna.a3m").exists()
        for file in ("rna",) if is_rna else ("pairing", "non_pairing"):
            source = pack / "inputs" / "msa" / folder / f"{file}.a3m"
            target = root / folder / (f"{folder}_all.a3m" if is_rna else f"{file}.a3m")
            target.parent.mkdir(exist_ok=True)
            target.write_text(with_query(source, sequences[entity]))
        tables[is_rna][sequences[entity]] = [folder] if is_rna else folder
    for name, folders_by_sequence in zip(("protein", "rna"), tables, strict=True):
        (root / f"{name}.json").write_text(json.dumps(folders_by_sequence))
    featurizer = import_module("protenix.data.msa.msa_featurizer").MSAFeaturizer
    return featurizer(
        prot_seq_or_filename_to_msadir_jsons=[str(root / "protein.json")],
        prot_msadir_raw_paths=[str(root)],
        rna_seq_or_filename_to_msadir_jsons=[str(root / "rna.json")],
        rna_msadir_raw_paths=[str(root)],
        prot_pairing_dbs=["pairing"],
        prot_non_pairing_dbs=["pairing-non_pairing"],
    )


def protenix_templates(pack: Path, sequences: Iterable[str], root: Path) -> tuple[Any, Any]:
    """Protenix's template featurizer over hits on recorded entries, and our templates.

    Hits have random letters: Protenix realigns complete chains to the query. Some must be left out:
    short, of few columns, a piece of the query, not listed, too new, without a file or chain.
    """
    chains = []
    (root / "mmcif").mkdir()
    files = sorted((pack / "inputs" / "mmcif").glob("*.gz"), key=lambda path: path.stat().st_size)
    for file in files[:5]:
        text = gzip.decompress(file.read_bytes())
        (root / "mmcif" / f"{file.name[:4]}.cif").write_bytes(text)
        strands = (
            gemmi.cif.read_string(text).sole_block().find_values("_entity_poly.pdbx_strand_id")
        )
        chains += [f"{file.name[:4]}_{path}" for path in ",".join(strands).strip("'").split(",")]
    names = [*chains, "9old_A", "9new_A", "9non_A", "9lat_A", f"{chains[0]}Q"]
    dates = {name[:4]: {"release_date": "1999-01-01"} for name in names}
    dates |= {
        "9lat": {"release_date": "2010-12-01"},
        chains[-1][:4]: {"release_date": "2010-10-31"},
    }
    del dates["9old"], dates["9new"]
    (root / "release_date_cache.json").write_text(json.dumps(dates))
    (root / "obsolete_to_successor.json").write_text(json.dumps({"9old": chains[1][:4]}))
    folders = {}
    for number, query in enumerate(sequences):
        rng, lines = np.random.default_rng(number), []
        for name in [*names, *rng.permutation(names)]:
            letters = "".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY-"), len(query)))
            cut = len(query) if rng.random() < 0.8 else int(rng.integers(3, len(query)))
            body = query if rng.random() < 0.1 else letters[:cut].ljust(len(query), "-")
            lines.append(f">{name}/3-{len(query)} mol:protein length:{len(query)}  X\n{body}\n")
        (root / f"t{number}").mkdir()
        (root / f"t{number}" / "hmmsearch.a3m").write_text("".join(lines + lines[-3:]))
        folders[query] = f"t{number}"
    (root / "templates.json").write_text(json.dumps(folders))
    featurizer = import_module("protenix.data.template.template_featurizer").TemplateFeaturizer(
        prot_template_mmcif_dir=str(root / "mmcif"),
        prot_template_raw_paths=[str(root)],
        prot_seq_or_filename_to_templatedir_jsons=[str(root / "templates.json")],
        kalign_binary_path="/usr/bin/kalign",
        release_dates_path=str(root / "release_date_cache.json"),
        obsolete_pdbs_path=str(root / "obsolete_to_successor.json"),
    )

    def ours(alignment: Alignment) -> Alignment:
        hits = [str(root / folders.get(alignment.query, "") / "hmmsearch.a3m")]
        if alignment.query not in folders:
            return alignment
        library = str(root / "mmcif"), ["protenix"], ComponentTable({}), FolderUse()
        complete, passed_over = with_templates(alignment, hits, *library)
        assert complete.hits and passed_over
        return complete.with_templates(None, complete.hits.until("2010-11-02"))

    return featurizer, ours


@pytest.mark.parametrize("path", smallest("protenix"), ids=lambda path: path.stem)
@pytest.mark.slow
def test_protenix_makes_our_features_of_its_structure(
    path: Path, calls: list[tuple[str, str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("protenix", reason="make projects")
    pack = path.parent.parent.parent
    data = protenix_of(path, tmp_path)
    geometry = import_module("protenix.utils.geometry")
    rotation = geometry.Rotation

    def turned() -> Any:
        value = rotation.random()
        calls.append(("Rotation", "random_transform", value.as_matrix()))
        return value

    monkeypatch.setattr(geometry, "Rotation", SimpleNamespace(random=turned))
    first = str(data["atom_array"].chain_id[0])
    row = {"type": "chain", "chain_1_id": first, "chain_2_id": ""}
    pipeline = import_module("protenix.data.pipeline.data_pipeline").DataPipeline
    msa = alignment_folders(pack, path.stem, data["sequences"], tmp_path)
    data |= {"release_date": "2011-01-01"}
    kinds = data["entity_poly_type"]
    proteins = [text for key, text in data["sequences"].items() if kinds[key] == "polypeptide(L)"]
    featurizer, with_hits = protenix_templates(pack, proteins, tmp_path)
    drawing = import_module("protenix.data.template.template_utils")

    def largest(_low: int, high: int) -> int:
        calls.append(("randint", "get_templates", high))
        return high

    monkeypatch.setattr(drawing, "random", SimpleNamespace(randint=largest))
    method, tokens, atoms, rows, templates, _centre = pipeline.crop(
        row, data, 128, msa, featurizer, [0.2, 0.4, 0.4], True, True, True, True
    )
    rows |= templates
    reference = import_module("protenix.data.core.featurizer").Featurizer(tokens, atoms)
    theirs = reference.get_all_input_features()
    theirs |= {name: torch.as_tensor(np.asarray(value)) for name, value in rows.items()}
    entry, table = record(pack, path.stem), components(pack)
    section = protenix_section(entry, table)
    recorded = entry_view("protenix", pack, path.stem)
    names = alignments_of(recorded)
    view = protenix_view(entry, section, protenix_molecules(pack), names, table)
    sample = read(sorted((pack / "protenix" / "samples").glob(f"{path.stem}.*.npz"))[0])
    alignments = [*map(with_hits, protenix_recorded.recorded_alignments(pack, recorded, sample))]
    draws = protenix_recorded.RecordedDraws([(f"{w}.{n}", v) for n, w, v in calls])
    config = ProtenixConfig(crop_size=128, templates=True)
    point = protenix_recorded.datapoint(view, row)
    ours = protenix_features(slotted(plan_protenix(view, alignments, point, draws, config)), config)
    assert not draws.calls
    assert_equal(ours["input_feature_dict"], theirs)
    long = [text for text in proteins if len(text) > 9]  # a hit has ten letters
    assert bool(theirs["template_distogram"].any()) == bool(long)
    labels, spatial = reference.get_labels(), "spatial" in method.lower()
    full, *_ = reference.get_gt_full_complex_features(data["atom_array"], atoms, spatial)
    assert_equal(ours["label_dict"], labels)
    assert_equal(ours["label_full_dict"], full)
    loss = import_module("protenix.model.loss").DistogramLoss()
    count = len(theirs["token_index"])
    logits = torch.randn(count, count, 64)
    pairs = (ours["input_feature_dict"], ours["label_dict"]), (theirs, labels)
    assert_same_loss(
        loss(
            logits,
            label["coordinate"].float(),
            label["coordinate_mask"],
            features["distogram_rep_atom_mask"].bool(),
        )
        for features, label in pairs
    )
