"""Complexes of a snapshot: how they are stored, checked, carried over and refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tests.store.records import assert_same, flip, published, random_record

from evofeed.base.errors import ChainMissing, FeatureError, ShardCorrupt
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_record import ChainRecord
from evofeed.store import Dataset, add_assemblies, compact, copy_dataset, gc, remove_chains
from evofeed.store.refs import move_ref


def make_record(name: str, L: int, N: int) -> ChainRecord:
    return random_record(L, chain_id=name, num_res=L, num_alignments=N)


def bare(record: ChainRecord, name: str) -> ChainRecord:
    """Only the alignment of a record."""
    names = [f.name for f in dataclasses.fields(record)]
    msa = {n: getattr(record, n) for n in names if n.startswith(("msa", "deletion", "hhblits"))}
    query = (record.sequence, record.aatype, record.residue_index)
    return ChainRecord.of_query(name, *query, **msa)


def complexes() -> list[AssemblyRecord]:
    """An A2B and an A3 of the same chains."""
    chain_a, chain_b = make_record("1abc_A", L=12, N=9), make_record("1abc_B", L=7, N=5)
    pairing = (bare(make_record("1abc_A", L=12, N=6), "1abc_A"), bare(chain_b, "1abc_B"))
    random = np.random.default_rng(0)
    records = []
    for name, chains, rows, copies in (
        ("1abc", (chain_a, chain_b), pairing, (("A", "C"), ("B",))),
        ("2xyz", (chain_a,), (None,), (("A", "B", "C"),)),
    ):
        total = sum(c.num_res * len(n) for c, n in zip(chains, copies, strict=True))
        mask = (random.random([total, 37]) < 0.3).astype(np.uint8)
        thousandths = random.integers(-99_999, 99_999, [total, 37, 3]).astype(np.float32)
        positions = thousandths / np.float32(1000) * mask[..., None]
        records.append(
            AssemblyRecord(
                assembly_id=name,
                chains=chains,
                pairing=rows,
                copies=copies,
                all_atom_positions=positions.astype(np.float32),
                all_atom_mask=mask,
                num_interface=5,
                resolution=2.5,
                release_date="2001-02-03",
                method="x-ray diffraction",
                dropped=("chain C: odd",),
            )
        )
    return records


@pytest.fixture
def uri(tmp_path: Path) -> str:
    published(tmp_path / "data", [*complexes()[0].chains, make_record("9zzz_A", L=4, N=2)])
    return str(tmp_path / "data")


def same(first: AssemblyRecord, second: AssemblyRecord) -> None:
    pairs = zip((*first.chains, *first.pairing), (*second.chains, *second.pairing), strict=True)
    for a, b in pairs:
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert_same(a, b.replace(chain_id=a.chain_id))
    assert_same(first, dataclasses.replace(second, chains=first.chains, pairing=first.pairing))


def test_complexes_come_back_as_they_were(uri: str, tmp_path: Path) -> None:
    before = Dataset.open(uri)
    assert len(before.assemblies) == 0 and before.manifest.version == (1, 0)
    snapshot = add_assemblies(before, complexes())
    dataset = Dataset.open(uri)
    assert b'"version":[1,1]' in snapshot.manifest.to_bytes(), "a reader of chains alone refuses it"
    assert dataset.digest == snapshot.digest and dataset.manifest.parent == before.digest
    assert list(dataset.assemblies) == ["1abc", "2xyz"] and len(dataset) == 3
    for record in complexes():
        same(record, dataset.assemblies[record.assembly_id])
    rows = dataset.assemblies.table.to_pylist()
    assert [row["stoichiometry"] for row in rows] == ["A2B", "A3"]
    assert rows[0]["num_res"] == 31 and rows[0]["num_chains"] == 3
    assert dataset.manifest.assemblies is not None and dataset.manifest.assemblies["num"] == 2
    assert dataset.verify(deep=True) == []
    other = str(tmp_path / "other")
    assert copy_dataset(uri, other, snapshot=before.digest).digest == before.digest
    reversed_ = add_assemblies(Dataset.open(other), list(reversed(complexes())))
    assert reversed_.digest == snapshot.digest


def test_damage_in_a_member_or_the_table_is_named_and_the_chains_still_read(uri: str) -> None:
    snapshot = add_assemblies(Dataset.open(uri), complexes())
    members = Dataset.open(uri).assemblies.members
    row = members.row("2xyz")
    flip(Path(uri) / members.key(row), int(members.offset[row] + members.nbytes[row]) - 200)
    reopened = Dataset.open(uri, snapshot.digest)
    with pytest.raises(ShardCorrupt, match="2xyz"):
        _ = reopened.assemblies["2xyz"]
    assert any("2xyz" in str(fault) for fault in reopened.verify())
    flip(Path(uri) / "snapshots" / snapshot.digest / "assemblies.arrow")
    dataset = Dataset.open(uri)
    assert dataset["9zzz_A"].num_res == 4
    with pytest.raises(ShardCorrupt, match="sha256"):
        _ = dataset.assemblies
    assert any("assemblies.arrow" in str(fault) for fault in dataset.verify())


def test_what_changes_chains_keeps_the_complexes(uri: str) -> None:
    add_assemblies(Dataset.open(uri), complexes())
    remove_chains(uri, ["9zzz_A"])
    compact(uri)
    dataset = Dataset.open(uri)
    assert len(dataset) == 2 and list(dataset.assemblies) == ["1abc", "2xyz"]
    gc(uri, dry_run=False, grace=0.0, keep_history=False)
    assert Dataset.open(uri).verify(deep=True) == []
    same(complexes()[0], Dataset.open(uri).assemblies["1abc"])
    with pytest.raises(ValueError, match="1abc_B belongs to assembly 1abc"):
        remove_chains(uri, ["1abc_B"])


def test_chains_made_again_keep_the_complexes_that_still_have_theirs(uri: str) -> None:
    with_all = add_assemblies(Dataset.open(uri), complexes(), dropped=[{"assembly_id": "0old"}])

    def again(*chains: ChainRecord) -> Dataset:
        published(uri, chains, expect=with_all.digest)
        dataset = Dataset.open(uri)
        move_ref(dataset.storage, "main", with_all.digest, dataset.digest)  # for the next case
        return dataset

    chain_a, chain_b = complexes()[0].chains
    sequence = {"sequence": chain_a.sequence, "aatype": chain_a.aatype}
    deeper = make_record("1abc_A", L=12, N=30).replace(**sequence)
    updated = again(deeper, chain_b)  # deeper alignments, one chain less
    assert list(updated.assemblies) == ["1abc", "2xyz"] and updated["1abc_A"].num_alignments == 30
    assert updated.verify(deep=True) == []
    assert updated.manifest.config["assemblies"] == {"dropped": [{"assembly_id": "0old"}]}
    partial = again(chain_a)
    assert list(partial.assemblies) == ["2xyz"] and partial.verify(deep=True) == []
    assert partial.manifest.config["assemblies"]["dropped"] == [
        {"assembly_id": "0old"},
        {"assembly_id": "1abc", "reason": "chain 1abc_B is gone"},
    ]
    letters = "".join("A" if c != "A" else "C" for c in chain_a.sequence)
    changed = again(make_record("1abc_A", L=12, N=3).replace(sequence=letters), chain_b)
    assert len(changed.assemblies) == 0 and changed.manifest.version == (1, 0)
    assert "has another sequence now" in str(changed.manifest.config["assemblies"])


def test_they_can_be_replaced_and_taken_away(uri: str) -> None:
    snapshot = add_assemblies(Dataset.open(uri), complexes())
    assert add_assemblies(Dataset.open(uri), complexes()) == snapshot, "the same again"
    add_assemblies(Dataset.open(uri), complexes()[1:], dropped=[{"assembly_id": "1abc"}])
    dataset = Dataset.open(uri)
    assert list(dataset.assemblies) == ["2xyz"]
    assert dataset.manifest.config["assemblies"] == {"dropped": [{"assembly_id": "1abc"}]}
    add_assemblies(dataset, [])
    assert Dataset.open(uri).manifest.version == (1, 0)


def test_what_does_not_fit_is_refused(uri: str) -> None:
    dataset, (a2b, a3) = Dataset.open(uri), complexes()
    with pytest.raises(ChainMissing, match="no assembly 'nothing'"):
        _ = dataset.assemblies["nothing"]
    stranger = dataclasses.replace(
        a3, chains=(a2b.chains[0].replace(chain_id="7not_A"),), copies=(("A", "B", "C"),)
    )
    with pytest.raises(ChainMissing, match="7not_A"):
        add_assemblies(dataset, [stranger])
    with pytest.raises(ValueError, match="added before"):
        add_assemblies(dataset, [a2b, a2b])
    with pytest.raises(FeatureError, match="36 residues"):
        long = dataclasses.replace(a3, all_atom_positions=a2b.all_atom_positions)
        add_assemblies(dataset, [long])
    with pytest.raises(FeatureError, match="another sequence"):
        add_assemblies(dataset, [dataclasses.replace(a3, pairing=(a2b.pairing[1],))])
    assert Dataset.open(uri).digest == dataset.digest
