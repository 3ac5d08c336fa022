"""A project's recorded draws reproduce its crops, features, labels and symmetries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.loader.views import boltz_recorded, openfold3_recorded, protenix_recorded
from tests.loader.views.packs import assert_recorded, entry_view, packs, read, recordings, slotted

from evofeed.loader.packed import pack_sample
from evofeed.loader.views.boltz.rows import CODES, distinct_rows

PROJECTS: dict[str, Any] = {
    "boltz": boltz_recorded,
    "openfold3": openfold3_recorded,
    "protenix": protenix_recorded,
}
GIVEN, STEPS = {"draw", "conformer"}, {"msa_stage", "crop"}
"""Parts of a sample that are its inputs, and intermediate results of the project."""
TEXTS = {"pdb_id", "chain_id", "preferred_chain_or_interface"}


def titled(path: Path) -> str:
    return f"{path.parts[-3]}-{path.stem}"


@pytest.mark.parametrize("path", recordings("*/crops/*.npz"), ids=titled)
def test_crops_are_the_recorded_ones(path: Path) -> None:
    project, pack, recorded = PROJECTS[path.parts[-3]], path.parents[2], read(path)
    view = entry_view(path.parts[-3], pack, path.stem)
    for number, metadata in enumerate(recorded.meta["crops"]):
        for name, ours in project.crop_again(view, metadata).items():
            expected = recorded.arrays[f"crop.{number:02}.{name}"]
            if name == "chains":
                ours, expected = np.sort(ours), np.sort(expected.astype(np.str_))
            np.testing.assert_array_equal(ours, expected, err_msg=f"crop {number}")


@pytest.mark.parametrize("path", recordings("*/samples/*.npz"), ids=titled)
def test_every_feature_and_label_equals_the_recorded_one(path: Path) -> None:
    project, sample = PROJECTS[path.parts[-3]], read(path)
    inputs = project.inputs_of(path.parents[2], sample)
    packed = project.planned(*inputs)
    assert not inputs.draws.calls
    assert pack_sample(packed)[0].nbytes <= 2 << 20
    ours = project.named(project.features_of(slotted(packed), inputs.config), sample)
    theirs = {k: v for k, v in sample.arrays.items() if k.split(".")[0] not in GIVEN | STEPS}
    assert ours.keys() == {name for name in theirs if name.split(".")[1] not in TEXTS}
    tensors = {name: value for name, value in ours.items() if isinstance(value, torch.Tensor)}
    assert_recorded(tensors, theirs, project.CLOSE, project.RTOL)
    for name in ours.keys() - tensors.keys():
        assert ours[name] == as_lists(theirs[name]), name


def as_lists(value: Any) -> Any:
    is_list = isinstance(value, (list, tuple, np.ndarray))
    return [as_lists(item) for item in value] if is_list else int(value)


@pytest.mark.parametrize("project", PROJECTS)
@pytest.mark.parametrize("pack", packs(), ids=lambda pack: pack.name)
def test_a_pack_has_every_sample_structure_and_crop_of_its_index(pack: Path, project: str) -> None:
    listed = json.loads((pack / "index.json").read_text())[project]
    assert {pack / row["file"] for row in listed} == set((pack / project).glob("samples/*.npz"))
    entries = {row["entry"] for row in listed}
    for folder in ("structure", "crops"):
        assert entries == {path.stem for path in (pack / project / folder).glob("*.npz")} != set()


@pytest.mark.parametrize("path", recordings("boltz/msa/*.npz"), ids=lambda path: path.stem)
def test_alignments_are_read_as_recorded(path: Path) -> None:
    recorded = read(path).arrays
    alignment = boltz_recorded.boltz_alignment(path.parents[2], path.stem)
    rows = distinct_rows(alignment, 16384)
    np.testing.assert_array_equal(rows, recorded["source_row"])
    codes = CODES[alignment.letters[alignment.row_letters[rows]]]
    np.testing.assert_array_equal(codes.ravel(), recorded["residues.res_type"])
    taxa = np.append(np.array(alignment.species, dtype="U20"), "-1")[alignment.row_species[rows]]
    np.testing.assert_array_equal(taxa.astype(int), recorded["sequences.taxonomy"])
    starts = alignment.deletion_start
    cells = np.concatenate([np.arange(*starts[row : row + 2]) for row in rows.tolist()])
    np.testing.assert_array_equal(alignment.deletion_column[cells], recorded["deletions.res_idx"])
    np.testing.assert_array_equal(alignment.deletion_count[cells], recorded["deletions.deletion"])
