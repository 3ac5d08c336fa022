"""Training samples of OpenFold3's own dataset over a recorded structure."""

from __future__ import annotations

import dataclasses
import sys
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.featurize.entries.prepared_sets import write_openfold3_set
from tests.featurize.records.allatom import (
    components,
    openfold3_alignments,
    openfold3_molecules,
    record,
)
from tests.loader.views.openfold3_recorded import RecordedDraws
from tests.loader.views.packs import entry_view, openfold3_cache, rdkit_graph

from evofeed.featurize.records.rulesets.openfold3 import openfold3_section
from evofeed.loader.views.entry_view import EntryView
from evofeed.loader.views.openfold3.tables import openfold3_view
from evofeed.protein.molecules import Molecule

_UNUSED = {
    "awscrt": {"checksums": None},
    "memory_profiler": {"profile": lambda function: function},
    "func_timeout": {
        "FunctionTimedOut": TimeoutError,
        "func_timeout": lambda timeout, func, args: func(*args),
    },
    "func_timeout.exceptions": {"FunctionTimedOut": TimeoutError},
    "kalign": {},
    "pdbeccdutils": {},
    "pdbeccdutils.core": {"ccd_reader": None},
    "pdbeccdutils.core.ccd_reader": {"Component": object},
}
"""Packages that OpenFold3 imports and a sample does not need."""


def openfold3_sample(
    path: Path, tokens: int, point: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Features of a sample around a chain; its reference molecules are the recorded ones."""
    stand_ins(monkeypatch)
    core = "openfold3.core.data"
    base = import_module(f"{core}.framework.single_datasets.base_of3")
    settings = import_module("openfold3.projects.of3_all_atom.config.dataset_config_components")
    molecules = openfold3_molecules(path.parents[2])
    monkeypatch.setattr(
        import_module(f"{core}.pipelines.sample_processing.conformer"),
        "read_single_annotated_sdf",
        lambda file: rdkit_molecule(molecules[file.stem], path.parents[2], file.stem),
    )
    own_class = type("Own", (base.BaseOF3Dataset,), {"__getitem__": None, "datapoint_cache": None})
    dataset = object.__new__(own_class)
    crop = settings.CropSettings().model_dump()
    crop["token_crop"] |= {"enabled": True, "token_budget": tokens}
    msa = settings.MSASettings()
    meta = openfold3_cache(path.parents[2])["training_cache"]["structure_data"][path.stem]
    chains = {name: SimpleNamespace(**chain) for name, chain in meta["chains"].items()}
    prepared = write_openfold3_set(folder / "set", path.parents[2], [path.stem])
    reference = SimpleNamespace(conformer_gen_strategy="use_fallback", set_fallback_to_nan=False)
    unused = "template_cache_directory template_structures_directory _ccd _ccd_file single_moltype"
    vars(dataset).update(
        **dict.fromkeys([*unused.split(), "template_structure_array_directory"]),
        target_structures_directory=prepared / "structure_files",
        target_structure_file_format="npz",
        use_roda_monomer_format=False,
        reference_molecule_directory=folder,
        template_file_format="npz",
        crop=crop,
        loss=settings.LossConfig().model_dump(),
        template=settings.TemplateSettings(),
        dataset_cache=SimpleNamespace(
            structure_data={
                path.stem: SimpleNamespace(chains=chains, resolution=meta["resolution"])
            },
            reference_molecule_data=defaultdict(lambda: reference),
        ),
        msa_sample_processor_train=base.MsaSampleProcessorTrain(
            config=msa, alignment_array_directory=prepared / "alignment_arrays"
        ),
        msa_featurizer_of3=base.MsaFeaturizerOF3(
            config=base.MsaFeaturizerOF3Config(
                max_rows=msa.max_rows,
                max_rows_paired=msa.max_rows_paired,
                subsample_with_bands=msa.subsample_with_bands,
            )
        ),
    )
    features: dict[str, Any] = dataset.create_all_features(path.stem, point, False, False)[
        "features"
    ]
    return features


def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stubs of packages that OpenFold3 imports and these tests do not use."""
    for name, values in _UNUSED.items():
        stub = ModuleType(name)
        vars(stub).update(values)
        monkeypatch.setitem(sys.modules, name, stub)


class WatchedDraws(RecordedDraws):
    """Draws of OpenFold3 by (function, where, result); conformers are the stored ones."""

    def __init__(self, view: EntryView, calls: list[tuple[str, str, Any]]) -> None:
        named = [
            (
                f"{where}.{name}",
                {"token_id": int(value.token_id)} if hasattr(value, "token_id") else value,
            )
            for name, where, value in calls
        ]
        super().__init__(view, named)

    def conformers(self, count: int, stored: int) -> np.ndarray:
        assert stored == 1
        return np.zeros(count, np.int64)


def our_view(path: Path) -> EntryView:
    """The entry from its mmCIF file, with the symmetries of recorded molecules."""
    pack = path.parents[2]
    entry = record(pack, path.stem)
    section = openfold3_section(entry, components(pack))
    names = openfold3_alignments(pack, path.stem)
    view = openfold3_view(entry, section, openfold3_molecules(pack), names)
    recorded = entry_view("openfold3", pack, path.stem)
    assert view.molecule_name == recorded.molecule_name
    return dataclasses.replace(view, molecule_orders=recorded.molecule_orders)


def rdkit_molecule(molecule: Molecule, pack: Path, name: str) -> Any:
    """A recorded molecule as OpenFold3 reads it, with its conformer."""
    chem = import_module("rdkit.Chem")
    graph = rdkit_graph(pack, name)
    conformer = chem.Conformer(len(molecule.name))
    for row, title in enumerate(molecule.name.tolist()):
        atom = graph.GetAtomWithIdx(row)
        atom.SetProp("annot_atom_name", title)
        atom.SetBoolProp("annot_used_atom_mask", bool(molecule.mask[row]))
        conformer.SetAtomPosition(row, molecule.position[0, row].astype(float).tolist())
    graph.AddConformer(conformer)
    return graph.GetMol()
