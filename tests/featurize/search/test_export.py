"""What a search found, as other programs read it, and back again."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.featurize.search.family import family, fasta

from evofeed.chain_record import ChainRecord
from evofeed.errors import InputError
from evofeed.featurize import SearchConfig, discover, featurize_chain, search_fasta
from evofeed.featurize.search.export import FORMATS, export_search

FAMILIES = [family(seed, 6, 70) for seed in (1, 2)]


@pytest.fixture
def found(tmp_path: Path) -> Path:
    """A search of two sequences in two databases."""
    rows = [
        (f"UniRef90_X{f}{n} Thing n=1 Tax=A b TaxID={n + 5} RepID=X", s)
        for f, kin in enumerate(FAMILIES)
        for n, s in enumerate(kin[1:])
    ]
    databases = [fasta(tmp_path / "one.fasta", rows[::2]), fasta(tmp_path / "two.fasta", rows)]
    query = fasta(tmp_path / "q.fasta", [(f"c{n}", kin[0]) for n, kin in enumerate(FAMILIES)])
    config = SearchConfig(program="pyhmmer")
    search_fasta(query, str(tmp_path / "search"), search_dbs=databases, config=config)
    return tmp_path / "search"


def rows(record: ChainRecord) -> set[tuple[bytes, ...]]:
    return {tuple(row.tobytes() for row in record.msa)}


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_what_is_written_reads_back_with_the_same_rows(
    form: str, found: Path, tmp_path: Path
) -> None:
    assert export_search(str(found), str(tmp_path / form), form) == 2
    wanted = {r.sequence: r for r in map(featurize_chain, discover(found))}
    back = [featurize_chain(source) for source in discover(tmp_path / form)]
    assert {record.sequence for record in back} == set(wanted) and len(back) == 2
    for record in back:
        assert rows(record) == rows(wanted[record.sequence])
        assert record.num_alignments == 6
        assert sorted(record.deletion_count) == sorted(wanted[record.sequence].deletion_count)


def test_taxa_stay_with_their_rows(found: Path, tmp_path: Path) -> None:
    export_search(str(found), str(tmp_path / "boltz"), "boltz")
    with (tmp_path / "boltz" / "c0.csv").open() as file:
        table = list(csv.DictReader(file))
    assert table[0] == {"key": "-1", "sequence": FAMILIES[0][0]}
    assert {row["key"] for row in table[1:]} == {"5", "6", "7", "8", "9"}
    export_search(str(found), str(tmp_path / "protenix"), "protenix")
    number = json.loads((tmp_path / "protenix" / "seq_to_pdb_index.json").read_text())
    folder = tmp_path / "protenix" / "msa" / str(number[FAMILIES[1][0]])
    names = [line for line in (folder / "pairing.a3m").read_text().splitlines() if line[0] == ">"]
    assert ">UniRef100_X10_5/" in names and len(names) > 5


def test_openfold3_gets_a_table_a_database_and_settings_that_name_them(
    found: Path, tmp_path: Path
) -> None:
    export_search(str(found), str(tmp_path / "of3"), "openfold3")
    with np.load(tmp_path / "of3" / "preparsed_alignments" / "c0.npz", allow_pickle=True) as file:
        tables = {name: file[name].item() for name in file}
    assert sorted(tables) == ["one_hits", "two_hits"]
    for table in tables.values():  # as `MsaArray.to_dict` has them
        assert sorted(table) == ["deletion_matrix", "metadata", "msa"]
        assert table["msa"].dtype == np.dtype("<U1") and table["msa"].shape[1] == 70
        assert table["deletion_matrix"].shape == table["msa"].shape
        assert len(table["metadata"]) == len(table["msa"])
        assert "".join(table["msa"][0]) == FAMILIES[0][0]
    settings = yaml.safe_load((tmp_path / "of3" / "runner.yml").read_text())
    settings = settings["dataset_config_kwargs"]["msa"]
    assert settings["aln_order"] == ["one_hits", "two_hits"] == sorted(settings["max_seq_counts"])
    query = json.loads((tmp_path / "of3" / "query.json").read_text())["queries"]["c0"]["chains"]
    assert Path(query[0]["main_msa_file_paths"][0]).is_file()


def test_a_folder_that_is_no_search_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no search\.index"):
        export_search(str(tmp_path), str(tmp_path / "out"), "af3")
