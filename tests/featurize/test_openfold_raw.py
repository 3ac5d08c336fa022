"""Records turn back into OpenFold's raw feature dicts, to the bit; crops of them are recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.featurize.golden import (
    INPUTS,
    RAW,
    STRUCTURE_RAW,
    assert_same,
    openfold_record,
    recorded,
    sources,
)

from evofeed.featurize import (
    ChainSource,
    CropConfig,
    FeaturizeConfig,
    crop_record,
    featurize_chain,
    to_openfold_raw,
)
from evofeed.featurize.records.crop import max_rows
from evofeed.protein.chain_record import ChainRecord

CHAINS = [path for path in RAW if path.name.removesuffix(".raw.npz") in sources()]
PDB = [path for path in RAW if path.name.endswith(".pdb.raw.npz")]
DERIVED = [p for p in RAW if p not in CHAINS + PDB and "multimer" not in p.name]


@pytest.mark.parametrize("path", CHAINS, ids=lambda path: path.name)
def test_alignments_templates_and_structures_equal_openfolds(path: Path, golden: Path) -> None:
    want = recorded(path)
    got = to_openfold_raw(openfold_record(path.name.removesuffix(".raw.npz")))
    assert got.keys() == want.keys()
    assert_same(got, want)


@pytest.mark.parametrize("path", STRUCTURE_RAW + PDB, ids=lambda path: path.name)
def test_structures_and_legacy_pdb_files_of_distillation_sets_equal_openfolds(
    path: Path, golden: Path
) -> None:
    chain_id, want, legacy = path.name.partition(".")[0], recorded(path), path in PDB
    folder, suffix = ("pdb", "pdb") if legacy else ("mmcif", "cif")
    structure = INPUTS[0] / folder / f"{chain_id.rpartition('_')[0]}.{suffix}"
    # Where OpenFold's featurizer failed for want of a date, its atoms were recorded alone.
    config = FeaturizeConfig.openfold(require_release_date=legacy or "release_date" in want)
    source = ChainSource(chain_id, structure=str(structure), is_distillation=legacy)
    assert_same(to_openfold_raw(featurize_chain(source, config)), want)


@pytest.mark.parametrize("path", DERIVED, ids=lambda path: path.name)
def test_a_derived_chain_equals_openfolds(path: Path, golden: Path) -> None:
    """One parent's alignment and templates without its first columns, on another structure."""
    want = recorded(path)
    sequence = want["sequence"][0].decode()
    parent = next(
        record
        for record in map(openfold_record, sources())
        if record.num_templates and sequence[:20] in record.sequence
    )
    cut = parent.sequence.index(sequence[:20])
    name = want["domain_name"][0].decode()
    file = f"{name.rpartition('_')[0]}.cif*"
    structure = next(INPUTS[0].rglob(file))
    source = ChainSource(name, structure=str(structure))
    record = featurize_chain(source, FeaturizeConfig.openfold())
    assert_same(to_openfold_raw(_with_columns_of(record, parent, cut)), want)


def _with_columns_of(record: ChainRecord, parent: ChainRecord, cut: int) -> ChainRecord:
    kept = parent.deletion_column >= cut
    return record.replace(
        msa=parent.msa[:, cut:],
        deletion_row=parent.deletion_row[kept],
        deletion_column=parent.deletion_column[kept] - cut,
        deletion_count=parent.deletion_count[kept],
        msa_species=parent.msa_species,
        template_aatype=parent.template_aatype[:, cut:],
        template_all_atom_positions=parent.template_all_atom_positions[:, cut:],
        template_all_atom_mask=parent.template_all_atom_mask[:, cut:],
        template_sum_probs=parent.template_sum_probs,
        template_domain_names=parent.template_domain_names,
        template_sequence=parent.template_sequence,
    )


def test_every_file_of_the_pack_is_compared(golden: Path) -> None:
    assert CHAINS and STRUCTURE_RAW and sources()
    assert len(CHAINS + PDB + DERIVED) + sum("multimer" in path.name for path in RAW) == len(RAW)


@pytest.mark.parametrize("chain_id", list(sources()))
def test_the_default_config_takes_every_chain_too(chain_id: str, golden: Path) -> None:
    record = featurize_chain(sources()[chain_id])
    strict = openfold_record(chain_id)
    assert np.array_equal(record.msa, strict.msa)
    assert np.array_equal(record.aatype, strict.aatype)
    entry = sources()[chain_id].entry_id.lower()
    assert not any(name.startswith(f"{entry}_") for name in record.template_domain_names)
    any_entry = FeaturizeConfig(exclude_same_pdb=False, released_before_days=None)
    assert featurize_chain(sources()[chain_id], any_entry).num_templates >= strict.num_templates
    counts = (record.msa[..., None] == np.arange(22)).sum(0)
    assert np.array_equal(counts, record.hhblits_profile_counts)


@pytest.mark.parametrize("choice", ["random", "first"])
@pytest.mark.parametrize("chain_id", list(sources()))
def test_rows_stay_within_the_budget_with_their_deletions_and_species(
    chain_id: str, choice: str, golden: object
) -> None:
    record = openfold_record(chain_id)
    crop = CropConfig(msa_budget=11 * record.num_res, row_choice=choice, max_templates=2)  # type: ignore[arg-type]
    kept = crop_record(record, crop)
    kept.validate()
    assert kept.num_alignments == min(11, record.num_alignments)
    assert kept.num_templates == min(2, record.num_templates)
    place = [np.flatnonzero((record.msa == row).all(1)).tolist() for row in kept.msa]
    assert 0 in place[0]
    dense, of_all = kept.deletion_matrix(), record.deletion_matrix()
    for row, candidates in enumerate(place):
        assert any((dense[row] == of_all[c]).all() for c in candidates)
    counts = (kept.msa[..., None] == np.arange(22)).sum(0)
    assert np.array_equal(counts, kept.hhblits_profile_counts)
    assert ("11 of" in " ".join(kept.dropped)) == (record.num_alignments > 11)


def test_the_budget_counts_cells() -> None:
    assert max_rows(500, CropConfig(msa_budget=5e7)) == 100_000
    assert max_rows(500, CropConfig(msa_budget=5e7, max_msa_rows=7)) == 7
    assert max_rows(500, CropConfig()) is None
    assert max_rows(500, CropConfig(msa_budget=10)) == 1
