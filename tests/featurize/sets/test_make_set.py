"""From a folder of structures to a divided set, also of one that is hard to divide."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import evofeed
from tests.featurize.search.family import fasta, mutated, require_programs
from tests.inside import units_inside

from evofeed.base.errors import InputError, TooSimilar
from evofeed.featurize.job import run_job
from evofeed.featurize.search.cluster import cluster_sequences
from evofeed.featurize.search.config import SearchConfig
from evofeed.featurize.sets.make import make_set, read_chains
from evofeed.store import Dataset, split_chains
from evofeed.store.inner import connected
from evofeed.store.likeness import Clusters, Pair, similar_pairs
from evofeed.synth import write_entries, write_synthetic

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("inside")]
IDENTITY = 0.4


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Structures of a few families, one file that is none, and a database of their sequences."""
    require_programs()
    root = tmp_path_factory.mktemp("raw")
    write_synthetic(root / "synth", 16, mean_length=60, mean_depth=20, mean_members=2)
    (root / "synth" / "mmcif" / "9bad.cif").write_text("data_9bad\n_entry.id 9bad\n")
    chains, _ = read_chains(str(root / "synth" / "mmcif"))
    fasta(root / "uniref90.fasta", [(f"UniRef90_{c.chain_id}", c.sequence) for c in chains])
    return root


def make(raw: Path, out: Path, *options: str) -> Any:
    """What the command says that it made."""
    database = ["--search-db", f"uniref90={raw / 'uniref90.fasta'}", "--workers", "2"]
    return evofeed("make-set", raw / "synth" / "mmcif", out, *database, *options, "--json").json


def sequences(data: Path, part: str) -> dict[str, str]:
    dataset = Dataset.open(str(data), part)
    return {name: dataset[name].sequence for name in dataset}


def test_structures_become_parts_that_share_no_family_with_a_card_each_and_run_again_it_continues(
    raw: Path, tmp_path: Path
) -> None:
    out = tmp_path / "set"
    split = ["--split", f"identity:{IDENTITY}", "--split", "share:0.3"]
    result = make(raw, out, *split)
    counts = result["parts"]
    assert set(counts) == {"train", "valid"} and sum(counts.values()) == result["chains"]
    parts = [sequences(out / "data", name) for name in ("valid", "train")]
    assert min(map(len, parts)) >= 2
    left_out = result["left_out"]
    assert list(left_out) == ["9bad"] and "no atoms" in left_out["9bad"][0].lower()
    main_ = Dataset.open(str(out / "data"))
    record = main_[next(iter(main_))]
    assert record.all_atom_positions is not None and record.num_alignments >= 1
    assert max(main_[name].num_alignments for name in main_) > 1
    assert all(size >= 1 for size in main_.index["cluster_size"].to_pylist())
    for name in ("train", "valid"):
        text = (out / "card" / name / "README.md").read_text()
        other = {"train": "in valid", "valid": "in train"}[name]
        assert "card.png" in text and "alignment rows" in text and other in text
        assert (out / "card" / name / "card.png").stat().st_size > 1000
    (out / "card" / "train" / "README.md").unlink()

    # Run again with another division, it continues: nothing is searched twice. By date, the
    # younger relatives of older chains are in no part.
    dates = sorted(main_.index["release_date"].to_pylist())
    date = dates[len(dates) * 2 // 3]
    by_date = ["--split", f"date:{date}", "--split", f"identity:{IDENTITY}"]
    make(raw, out, *by_date)
    for part, young in (("train", False), ("valid", True)):
        released = Dataset.open(str(out / "data"), part).index["release_date"].to_pylist()
        assert released and all((day >= date) == young for day in released)
    selection = Dataset.open(str(out / "data"), "valid").manifest.config["selection"]
    assert (selection["max_identity"], selection["pairs_above"]) == (IDENTITY, 0)
    report = json.loads((out / "search" / "report.json").read_text())
    assert report["searched"] == 0 and report["cache_hits"] > 0
    assert Dataset.open(str(out / "data")).digest == main_.digest
    assert (out / "card" / "train" / "README.md").exists()


def test_entries_are_prepared_with_the_alignments_that_were_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alike are proteins that are the same: mmseqs need not compare them."""

    def identical(
        first: dict[str, str], second: dict[str, str], *_: object, **__: object
    ) -> list[Pair]:
        pairs = itertools.product(first, second)
        return [Pair(a, b, 1.0, 40, 1.0) for a, b in pairs if a != b and first[a] == second[b]]

    for module in ("featurize.search.cluster", "store.selection"):
        monkeypatch.setattr(f"evofeed.{module}.similar_pairs", identical)
    write_entries(tmp_path / "raw", 4, residues=24)
    chains, _ = read_chains(str(tmp_path / "raw" / "mmcif"))
    rows = [(f"UniRef90_{c.chain_id}", c.sequence) for c in chains]
    database = fasta(tmp_path / "uniref90.fasta", rows)
    options = ["--search-db", f"uniref90={database}"]
    options += ["--split", "identity:0.9", "--split", "share:0.3"]
    options += ["--components", str(tmp_path / "raw" / "components.cif"), "--workers", "1"]
    evofeed("make-set", tmp_path / "raw" / "mmcif", tmp_path / "set", *options)
    where = str(tmp_path / "set" / "data")
    parts = {name: Dataset.open(where, name) for name in ("valid", "train")}
    names = {name: set(part.entries.table["entry"].to_pylist()) for name, part in parts.items()}
    assert names["valid"] and names["train"] and not names["valid"] & names["train"]
    for part, ids in names.items():  # whole: chains, complexes and records of an entry together
        dataset = parts[part]
        assert {name.rpartition("_")[0] for name in dataset} == ids == set(dataset.assemblies)
        assert len(dataset) == 2 * len(ids)
        points = dataset.entries.datapoints["entry"].to_pylist()
        assert set(points) == set(range(len(ids)))
        entry = f"{min(ids)}-1"
        assert dataset.entries[entry].entry == min(ids)
    lines = (tmp_path / "set" / "clusters.tsv").read_text().splitlines()
    table = {member: first for first, member in (line.split("\t") for line in lines)}
    for project in ("boltz", "openfold3", "protenix"):  # clusters are those of the entries too
        for part in parts.values():
            entries = part.entries.table["entry"].to_pylist()
            rows = [r for r in part.entries.datapoints.to_pylist() if r["project"] == project]
            for row in rows:
                ends = [row["cluster_a"], *([row["cluster_b"]] if row["chain_b"] >= 0 else [])]
                for kind, cluster in zip((row["kind_a"], row["kind_b"]), ends, strict=False):
                    if kind == 0:
                        assert cluster == table[f"{entries[row['entry']]}_A"]
                    elif kind == 3:
                        assert cluster in ("LIG", "MG", "SO4")
            assert {row["kind_a"] for row in rows} >= {0, 3}
    train = parts["train"].entries
    (alignment, *_) = train.table["alignments"].to_pylist()[0]
    assert train.alignment(alignment).sources == ("uniref90_hits",)


FAMILIES = 12


def hard_set() -> list[tuple[str, str]]:
    """Families of relatives at 10 to 50 % changes, a fragment in each, in every third a fusion."""
    draw = random.Random(5)
    first = ["".join(draw.choices("ARNDCQEGHILKMFPSTWYV", k=110)) for _ in range(FAMILIES)]
    records = []
    for number, sequence in enumerate(first):
        kin = [sequence, *(mutated(sequence, share, draw) for share in (0.1, 0.3, 0.5))]
        records += [(f"f{number}m{n}", s) for n, s in enumerate(kin)]
        records.append((f"f{number}fragment", mutated(kin[1], 0.1, draw)[20:86]))
        if number % 3 == 0:
            records.append((f"f{number}fusion", kin[2] + mutated(first[number - 1], 0.2, draw)))
    return records


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The set as FASTA and as a dataset."""
    require_programs()
    folder = tmp_path_factory.mktemp("hard")
    fasta(folder / "all.fasta", hard_set())
    with units_inside():
        assert run_job(str(folder / "all.fasta"), str(folder / "data")).num_broken == 0
    return folder


def hits(folder: Path, first: dict[str, str], second: dict[str, str]) -> list[tuple[str, str]]:
    """Pairs above the identity over 40 residues, by a search of our own making."""
    sides = [fasta(folder / f"{n}.fasta", side.items()) for n, side in enumerate((first, second))]
    words = "--format-output query,target,fident,alnlen -s 7.5 --threads 1".split()
    command = ["mmseqs", "easy-search", *sides, "out.m8", "tmp", *words]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    rows = [line.split() for line in (folder / "out.m8").read_text().splitlines()]
    return [(row[0], row[1]) for row in rows if float(row[2]) > IDENTITY and int(row[3]) >= 40]


def test_no_chain_of_one_part_is_like_one_of_another_and_what_is_no_protein_is_named(
    data: Path, tmp_path: Path
) -> None:
    table, uri, more = str(tmp_path / "clusters.tsv"), str(data / "data"), tmp_path / "more.fasta"
    more.write_text(f"{(data / 'all.fasta').read_text()}>odd\nACD1EFG\n")
    problems: list[InputError] = []
    sequences, clusters = cluster_sequences(str(more), table, identity=IDENTITY, problems=problems)
    assert sequences == len(hard_set()) and [problem.item for problem in problems] == ["odd"]
    assert 5 <= clusters <= FAMILIES - FAMILIES // 3  # fusions join families
    made = split_chains(uri, Clusters(table), {"valid": 0.2}, max_identity=IDENTITY)
    parts = {
        name: {chain: Dataset.open(uri, name)[chain].sequence for chain in Dataset.open(uri, name)}
        for name in ("valid", "train")
    }
    assert sum(map(len, parts.values())) == len(hard_set()) and len(parts["valid"]) > 7
    everything = parts["valid"] | parts["train"]
    alike = {target for _, target in hits(tmp_path, parts["valid"], everything)}
    assert alike and not alike & set(parts["train"])  # it does find what is there
    selection = made["valid"].manifest.config["selection"]
    assert (selection["max_identity"], selection["pairs_above"]) == (IDENTITY, 0)


def test_parts_that_are_alike_are_not_published_unless_one_says_so(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clusters that leave every chain alone; of both splits the parts are compared once."""
    found: list[Any] = []

    def compared(*given: Any, **more: Any) -> Any:
        found[:] = found or [similar_pairs(*given, **more)]
        return found[0]

    monkeypatch.setattr("evofeed.store.selection.similar_pairs", compared)
    table, uri = str(tmp_path / "clusters.tsv"), str(data / "data")
    Path(table).write_text("".join(f"{chain}\t{chain}\n" for chain in Dataset.open(uri)))
    shares = {"leaky": 0.2}
    with pytest.raises(TooSimilar, match=r"pairs of chains in two parts are alike .*--allow-simil"):
        split_chains(uri, Clusters(table), shares, max_identity=IDENTITY)
    with pytest.raises(Exception, match="leaky"):
        Dataset.open(uri, "leaky")
    made = split_chains(uri, Clusters(table), shares, max_identity=IDENTITY, allow_similar=True)[
        "leaky"
    ]
    selection = made.manifest.config["selection"]
    assert selection["pairs_above"] > 0
    query, target, identity, aligned, _ = selection["strongest_pairs"][0]
    assert query in Dataset.open(uri, "leaky") and target in Dataset.open(uri, "train")
    assert identity > IDENTITY and aligned >= 40


def test_what_is_joined_by_way_of_others_is_together() -> None:
    names = ["a", "b", "c", "d", "e"]
    assert connected(names, [("a", "c"), ("d", "c")]) == [["a", "c", "d"], ["b"], ["e"]]


def test_an_input_without_chains_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    with pytest.raises(InputError, match="no protein chain"):
        make_set(str(tmp_path / "raw"), tmp_path / "set", [], SearchConfig())
    assert not (tmp_path / "set").exists()
