"""Published sets of Boltz, OpenFold3 and Protenix give the chains they were made of."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.featurize.published_sets import write_boltz, write_openfold3, write_protenix
from tests.store.records import published, random_record

from evofeed.base.errors import InputError
from evofeed.featurize import discover, featurize_chain
from evofeed.featurize.inputs.clusters import cluster_sizes
from evofeed.featurize.job.run import run_job
from evofeed.featurize.records.crop import cut_window
from evofeed.protein.chain_record import ChainRecord
from evofeed.store import Dataset

Write = Callable[[Path, Sequence[ChainRecord]], Path]
WRITERS: dict[str, Write] = {
    "boltz": write_boltz,
    "openfold3": write_openfold3,
    "protenix": write_protenix,
}


def records() -> list[ChainRecord]:
    """Three chains; atoms only where a residue has them, every row once, the query first."""
    found = []
    for seed in (1, 2, 3):
        record = random_record(seed, chain_id=f"{seed}abc_A", num_res=20 + seed, num_alignments=9)
        msa = np.unique(record.msa[1:], axis=0)
        msa = np.concatenate([record.aatype[None], msa])
        keep = (record.deletion_row < len(msa)) & (record.deletion_row > 0)
        found.append(
            dataclasses.replace(
                record,
                msa=msa,
                msa_source=np.zeros(len(msa), np.uint8),
                msa_species=("",) * len(msa),
                deletion_row=record.deletion_row[keep],
                deletion_column=record.deletion_column[keep],
                deletion_count=record.deletion_count[keep],
                resolution=1.5 + seed,
            )
        )
    return found


def rows(record: ChainRecord) -> set[tuple[bytes, bytes]]:
    gone = record.deletion_matrix()
    return {(row.tobytes(), gone[n].tobytes()) for n, row in enumerate(record.msa)}


@pytest.mark.parametrize("form", sorted(WRITERS))
def test_a_set_gives_sequence_rows_and_atoms_as_they_were(form: str, tmp_path: Path) -> None:
    wanted = records()
    sources = discover(WRITERS[form](tmp_path / form, wanted))
    assert [source.chain_id for source in sources] == [r.chain_id for r in wanted]
    for source, want in zip(sources, wanted, strict=True):
        assert type(source).from_dict(json.loads(json.dumps(source.to_dict()))) == source
        found = featurize_chain(source)
        assert found.sequence == want.sequence and (found.aatype == want.aatype).all()
        assert rows(found) == rows(want)
        assert (found.all_atom_mask == want.all_atom_mask).all()
        assert want.all_atom_positions is not None and want.all_atom_mask is not None
        assert found.all_atom_positions is not None
        here = want.all_atom_mask.astype(bool)
        assert (found.all_atom_positions[here] == want.all_atom_positions[here]).all()
        assert (found.release_date, found.resolution) == (want.release_date, want.resolution)


@pytest.mark.system
def test_a_job_makes_a_dataset_of_a_set(tmp_path: Path) -> None:
    raw = write_protenix(tmp_path / "raw", records())
    report = run_job(str(raw), str(tmp_path / "data"), executor="local", workers=1)
    assert (report.state, report.num_good) == ("published", 3)
    index = Dataset.open(str(tmp_path / "data")).index
    assert index["resolution"].to_pylist() == [2.5, 3.5, 4.5]


def test_names_taxa_and_clusters_of_the_lists_are_kept(tmp_path: Path) -> None:
    boltz = write_boltz(tmp_path / "boltz", records())
    manifest = boltz / "rcsb_processed_targets" / "manifest.json"
    assert cluster_sizes(str(manifest), discover(boltz)) == {"1abc_A": 2, "2abc_A": 2, "3abc_A": 1}
    text = manifest.read_text().replace('"cl0"', "-1").replace('"cl1"', "-1")
    manifest.write_text(text)
    with pytest.raises(InputError, match="every chain is -1"):
        cluster_sizes(str(manifest), discover(boltz))
    made = featurize_chain(discover(write_openfold3(tmp_path / "of3", records()))[0])
    assert made.msa_sources == ("mgnify_hits.a3m", "uniref90_hits.a3m")


class Bomb:
    """What a malicious pickle holds: a call to make when it is opened."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch /tmp/evofeed_pickle_was_run",)


def test_a_pickle_that_wants_to_run_something_is_refused(tmp_path: Path) -> None:
    raw = write_protenix(tmp_path / "protenix", records())
    entry = raw / "mmcif_bioassembly" / "1abc.pkl.gz"
    entry.write_bytes(gzip.compress(pickle.dumps({"sequences": Bomb()})))
    sources = discover(raw)
    with pytest.raises(InputError, match="is not allowed"):
        featurize_chain(sources[0])
    of3 = write_openfold3(tmp_path / "of3", records())
    array = np.array({"msa": Bomb()}, object)
    np.savez(of3 / "alignment_arrays" / "1abc_A.npz", allow_pickle=True, mgnify_hits=array)
    with pytest.raises(InputError, match="is not allowed"):
        featurize_chain(discover(of3)[0])
    assert not Path("/tmp/evofeed_pickle_was_run").exists()


@pytest.mark.parametrize("form", sorted(WRITERS))
def test_damaged_files_are_one_typed_error_each(form: str, tmp_path: Path) -> None:
    raw = WRITERS[form](tmp_path / "raw", records())
    binary = sorted([*raw.rglob("*.npz"), *raw.rglob("*.pkl.gz")])
    draw = np.random.default_rng(0)
    for file in binary:
        data = bytearray(file.read_bytes())
        for _ in range(12):
            data[draw.integers(len(data))] ^= int(draw.integers(1, 256))
        file.write_bytes(bytes(data[: len(data) - int(draw.integers(0, 40))]))
    problems: list[InputError] = []
    for source in discover(raw, problems=problems):
        with pytest.raises(InputError):
            featurize_chain(source)


def test_unconfident_residues_of_predictions_lose_their_atoms(tmp_path: Path) -> None:
    raw = write_openfold3(tmp_path / "of3", records())
    (source, *_) = discover(raw, is_distillation=True)
    assert source.structure is not None
    with np.load(source.structure) as arrays:
        kept = dict(arrays)
    kept["b_factor"] = np.where(kept["res_id"] <= 10, 30.0, 90.0)
    np.savez(source.structure, **kept)
    found = featurize_chain(source)
    assert found.all_atom_mask is not None and found.is_distillation
    assert not found.all_atom_mask[:10].any() and found.all_atom_mask[10:].any()
    assert any("below confidence" in note for note in found.dropped)
    # What is masked keeps its confidence, and so does what comes back from a shard.
    assert len(found.confidence) == found.num_res
    assert set(found.confidence[:10]) <= {30.0, -1.0} and set(found.confidence[10:]) <= {90.0, -1.0}
    published(tmp_path / "data", [found])
    assert Dataset.open(str(tmp_path / "data"))[found.chain_id].confidence == found.confidence
    assert cut_window(found, 5, 15).confidence == found.confidence[5:15]
