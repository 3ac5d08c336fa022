"""mmCIF as other programs write it: the same chains as in the PDB's own file."""

from __future__ import annotations

from pathlib import Path

import gemmi
import numpy as np
import pytest
from tests.featurize.test_mmcif import small
from tests.featurize.test_pdb import protein

from evofeed.base.errors import MmcifError
from evofeed.featurize import FeaturizeConfig
from evofeed.featurize.structures.mmcif import parse_mmcif
from evofeed.featurize.structures.structure_files import parse_structure

OPENFOLD = FeaturizeConfig.openfold()


@pytest.mark.parametrize("value", ["nan", "NaN", ".", "?"])
def test_an_atom_without_coordinates_is_absent(value: str) -> None:
    data = small([(".", "1.0", "1.0"), (".", "1.0", value)])
    with_cb = data.replace(f" {value} 0 0 1".encode(), f" {value} 0 0 1\n".encode())
    data = with_cb[::-1].replace(b" AC ", b" BC ", 1)[::-1]  # the last CA is a CB
    chain = parse_mmcif(data, file_id="t").chain("A")
    assert chain.mask.sum() == 1 and chain.notes == ("1 atoms without coordinates",)
    with pytest.raises(MmcifError):
        parse_mmcif(data, file_id="t", config=OPENFOLD)


# predictions


def prediction(folder: Path, confidences: list[float]) -> tuple[bytes, bytes]:
    """A model as AlphaFold's database has it, in both formats."""
    text = "".join(
        protein("A", "ALA", number, b=value) for number, value in enumerate(confidences, 1)
    )
    structure = gemmi.read_pdb_string(text)
    structure.setup_entities()
    structure.assign_label_seq_id()
    document = structure.make_mmcif_document()
    return text.encode(), document.as_string().encode()


def test_a_prediction_is_masked_alike_in_both_formats(tmp_path: Path) -> None:
    pdb, mmcif = prediction(tmp_path, [90, 50, 30, 50.01, 70])
    for config in (FeaturizeConfig(), FeaturizeConfig(confidence_threshold=69.0)):
        one, two = (
            parse_structure(data, name, config=config, is_distillation=True).chain("A")
            for data, name in ((pdb, "m.pdb"), (mmcif, "m.cif"))
        )
        assert one.notes[0] == two.notes[0] and "residues below confidence" in one.notes[0]
        assert one.confidence == two.confidence and len(one.confidence) == len(one.sequence)
        assert np.array_equal(one.mask, two.mask) and np.array_equal(one.positions, two.positions)
        assert 0 < one.mask.sum() < 20
    assert parse_structure(mmcif, "m.cif").chain("A").mask.sum() == 20
    theirs = parse_structure(mmcif, "m.cif", config=FeaturizeConfig(mask_mmcif=False),
                             is_distillation=True)  # fmt: skip
    assert theirs.chain("A").mask.sum() == 20


METRICS = """loop_
_ma_qa_metric.id
_ma_qa_metric.mode
_ma_qa_metric.name
1 global pLDDT
2 local {name}
loop_
_ma_qa_metric_local.label_asym_id
_ma_qa_metric_local.label_seq_id
_ma_qa_metric_local.metric_id
_ma_qa_metric_local.metric_value
A 1 2 20.00
A 2 2 95.00
A 1 1 99.00
"""


@pytest.mark.parametrize(("name", "kept"), [("pLDDT", 1), ("QMEAN", 2)])
def test_a_models_own_table_of_confidence_comes_before_b_factors(
    name: str, kept: int, tmp_path: Path
) -> None:
    _, mmcif = prediction(tmp_path, [90, 90, 10])
    data = mmcif.replace(b"Axp", b"A") + METRICS.format(name=name).encode()
    chain = parse_mmcif(data, file_id="t", is_distillation=True).chain("A")
    assert chain.mask.any(-1).sum() == kept


def test_a_prediction_that_is_not_sure_of_anything_says_why() -> None:
    data = small([(".", "1.0", "1.0")])
    chain = parse_mmcif(data, file_id="t", is_distillation=True).chain("A")
    assert chain.mask.sum() == 1 and "no residue is masked" in chain.notes[0]
    text = protein("A", "ALA GLY", b=0.9).encode()
    chain = parse_structure(text, "m.pdb", is_distillation=True).chain("A")
    assert chain.mask.sum() == 0 and "pLDDT goes to 100" in chain.notes[1]
