"""Recipes compared with the calls that the pipelines themselves make."""

from __future__ import annotations

import os
import random
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.featurize.search.family import family, fasta, hh_db, mutated, require_programs
from tests.featurize.search.test_programs import template_hits
from tests.featurize.search.test_search import chains, fake_hhblits, text_of

from evofeed.base.errors import InputError, NoProtein
from evofeed.featurize import SearchOptions, discover, run_search
from evofeed.featurize.entries.alignments import read_alignment
from evofeed.featurize.entries.input import alignment_items
from evofeed.featurize.formats.a3m import parse_a3m
from evofeed.featurize.formats.hits import parse_hmmsearch
from evofeed.featurize.search import read_any, read_sequences, to_a3m
from evofeed.featurize.search.config import Database
from evofeed.featurize.search.recipes import RECIPES, cook
from evofeed.protein.datapoints import alignment_name

pytestmark = pytest.mark.usefixtures("inside")
HHBLITS = (
    "-n 3 -e 0.001 -maxseq 1000000 -realign_max 100000 -maxfilt 100000 -min_prefilter_hits 1000"
).split()
"""Options that OpenFold's `HHBlits.query` and AlphaFold 2's call it with, files and cores apart."""

CAPS = yaml.safe_load(Path(__file__).with_name("caps.yaml").read_text())
QUERY, *KIN = family(11, 12)


@pytest.mark.parametrize("recipe", CAPS)
def test_each_role_has_the_rows_that_its_pipeline_takes_of_it(recipe: str) -> None:
    roles = [role.name for role in RECIPES[recipe].roles]
    dbs = [Database(name, f"/db/{name}") for name in reversed(roles)]
    assigned, config = cook(recipe, dbs)
    rows = {db.name: db.max_hits for db in assigned if not db.is_template}
    assert CAPS[recipe].items() <= rows.items()
    assert assigned[0].name == "uniref90"  # which templates start from
    assert config.hhblits == tuple(HHBLITS)
    assert (config.e_value, config.iterations, config.max_hits) == (1e-4, 1, 1_000_000)
    limited, _ = cook(recipe, [Database("uniref90", "/db/u", max_hits=7)])
    assert limited[0].max_hits == 7


def test_templates_are_searched_in_the_databases_of_their_roles() -> None:
    assigned, _ = cook("af2", [Database("pdb70", "/p"), Database("uniref90", "/u")])
    assert [(db.name, db.is_template) for db in assigned] == [("uniref90", False), ("pdb70", True)]
    assigned, _ = cook("af2-multimer", [Database("pdb_seqres", "/p"), Database("uniref90", "/u")])
    assert assigned[1].is_template


@pytest.mark.parametrize("name", ["mgy_clusters", "uniref"])
def test_a_database_without_a_role_is_refused_with_the_roles_there_are(name: str) -> None:
    says = rf"af2 has no database '{name}': .* uniref90, mgnify, bfd"
    with pytest.raises(ValueError, match=says):
        cook("af2", [Database(name, "/data/x.fa")])


def test_hhblits_is_called_once_for_bfd_and_uniref30_with_openfolds_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bfd", "uniref30"):
        (tmp_path / f"{name}_cs219.ffdata").write_text("x")
    fake_hhblits(tmp_path / "bin", 'cp "$in" "$out"')
    logged = tmp_path / "bin" / "hhblits"
    call = f'[ "$1" = -h ] || echo "$@" >> {tmp_path}/calls\n'
    logged.write_text(logged.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{call}"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    dbs = [Database(name, str(tmp_path / name)) for name in ("uniref30", "bfd")]
    databases, config = cook("af2", dbs)
    report = run_search(chains(QUERY), str(tmp_path / "out"), databases, config=config)
    assert report.num_broken == 0
    (line,) = (tmp_path / "calls").read_text().splitlines()
    words = line.split()
    pairs = list(zip(words[::2], words[1::2], strict=True))
    paths = [value for option, value in pairs if option == "-d"]
    assert paths == [str(tmp_path / "bfd"), str(tmp_path / "uniref30")]
    files = {"-i", "-oa3m", "-o", "-cpu", "-d"}
    assert [pair for pair in pairs if pair[0] not in files] == list(
        zip(HHBLITS[::2], HHBLITS[1::2], strict=True)
    )


def test_rows_of_a_joint_search_are_those_of_openfolds_call(tmp_path: Path) -> None:
    """Sequences with every letter; the databases have different relatives."""
    require_programs()
    prefixes = []
    for number, name in enumerate(("bfd", "uniref30")):
        entries = {f"{name}{n}": [(f"{name}{n}", s)] for n, s in enumerate(KIN[number::2])}
        prefixes.append(hh_db(tmp_path / name, entries))
    odd = QUERY[:30] + "UOBZJX" + QUERY[36:]
    dbs = [Database(name, path) for name, path in zip(("bfd", "uniref30"), prefixes, strict=True)]
    databases, config = cook("af2", dbs)
    options = SearchOptions(workers=1)
    report = run_search(
        chains(QUERY, odd), str(tmp_path / "out"), databases, config=config, options=options
    )
    assert report.num_broken == 0
    for source in discover(tmp_path / "out"):
        query = fasta(tmp_path / "query.fasta", [("query", source.sequence)])
        paths = [word for prefix in prefixes for word in ("-d", prefix)]
        command = ["hhblits", "-i", query, "-cpu", "1", "-oa3m", "by_hand.a3m", "-o", "/dev/null"]
        subprocess.run([*command, *HHBLITS, *paths], cwd=tmp_path, check=True, capture_output=True)
        expected = parse_a3m((tmp_path / "by_hand.a3m").read_bytes())
        rows = parse_a3m(text_of(source, "bfd_uniref_hits.a3m"))
        assert rows.sequences() == expected.sequences()
        assert rows.descriptions() == expected.descriptions()
        names = {name[:3] for name in rows.descriptions()[1:]}
        assert names == {"bfd", "uni"}, "rows of both"


def test_rows_for_pairing_are_in_no_alignment_of_the_chain(tmp_path: Path) -> None:
    dbs = [
        Database(
            name, fasta(tmp_path / f"{name}.fasta", [(f"{name}{n}", s) for n, s in enumerate(KIN)])
        )
        for name in ("uniprot", "uniref90")
    ]
    databases, config = cook("af2-multimer", dbs)
    run_search(chains(QUERY), str(tmp_path / "out"), databases, config=config)
    (source,) = discover(tmp_path / "out")
    roles = {ref.plain_name: role for role, ref in source.alignment_files()}
    assert roles == {"uniref90_hits.sto": "stockholm", "uniprot_hits.sto": "other"}


def by_hand(folder: Path, *commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)


def test_templates_of_af3_are_searched_with_the_rows_of_three_databases(tmp_path: Path) -> None:
    """AF3's own steps: rows of uniref90, small_bfd and mgnify, each once, hmmbuild, hmmsearch."""
    require_programs()
    parts = {"uniref90": KIN[::3], "small_bfd": KIN[1::3], "mgnify": [*KIN[2::3], KIN[0]]}
    dbs = [
        Database(name, fasta(tmp_path / name, [(f"{name}{n}", s) for n, s in enumerate(rows)]))
        for name, rows in parts.items()
    ]
    pdb = [
        (f"1a{n:02}_A mol:protein length:{len(s)}  THING", s)
        for n, s in enumerate([*KIN, *family(12, 3)])
    ]
    dbs.append(Database("pdb_seqres", fasta(tmp_path / "pdb_seqres", pdb)))
    databases, config = cook("af3", dbs)
    run_search(chains(QUERY), str(tmp_path / "out"), databases, config=config)
    (source,) = discover(tmp_path / "out")
    rows: dict[str, str] = {}
    for name in parts:  # a3m: insertions in lower case, of which equal rows may have different ones
        text = to_a3m(read_any(text_of(source, f"{name}_hits.sto"))).decode()
        for record in text.split(">")[1:]:
            letters = record.splitlines()[1]
            rows.setdefault(re.sub("[a-z]", "", letters), letters)
    pieces = [re.split("[A-Z-]", letters) for letters in rows.values()]  # what is inserted
    widths = [max(map(len, lane)) for lane in zip(*pieces, strict=True)]
    aligned = []
    for match, inserted in zip(rows, pieces, strict=True):
        lanes = [text.upper().ljust(n, "-") for text, n in zip(inserted, widths, strict=True)]
        aligned.append("".join(a + b for a, b in zip(lanes, [*match, ""], strict=True)))
    expected = template_hits(tmp_path, aligned, "pdb_seqres")
    found = parse_hmmsearch(text_of(source, "hmmsearch_output.sto"), QUERY)
    assert found == parse_hmmsearch(expected, QUERY)
    assert len(found) >= len(KIN)


@pytest.mark.parametrize("length", [40, 120])
def test_rna_is_searched_and_aligned_as_af3_calls_nhmmer(length: int, tmp_path: Path) -> None:
    require_programs()
    rng = random.Random(length)
    query = "".join(rng.choices("ACGU", k=length))
    kin = [mutated(query, 0.02 * n, rng, "ACGU") for n in range(1, 9)]
    around = ["".join(rng.choices("ACGU", k=2 * n)) for n in range(8)]
    records = [(f"kin{n} some words", around[n] + s + around[7 - n]) for n, s in enumerate(kin)]
    mirror = str.maketrans("ACGU", "UGCA")
    records += [(f"mirrored{n}", s.translate(mirror)[::-1]) for n, s in enumerate(kin[:2])]
    records += [("alone", "".join(rng.choices("ACGU", k=200)))]
    dbs = [Database(name, fasta(tmp_path / name, records)) for name in ("nt", "rfam")]
    dbs.append(Database("uniref90", fasta(tmp_path / "uniref90", [("k", KIN[0])])))
    databases, config = cook("af3", dbs)
    rna, other = f"{query[:9]}N{query[10:]}", "GGGU"
    queries_fasta = fasta(tmp_path / "asked.fasta", [("c0", rna), ("c1", QUERY), ("c2|rna", other)])
    with pytest.raises(NoProtein):
        read_sequences(queries_fasta)
    sequences = read_sequences(queries_fasta, rna=True)
    report = run_search(sequences, str(tmp_path / "out"), databases, config=config)
    assert report.num_broken == 0 and report.searched == 3  # rfam and nt are the same

    query_file = fasta(tmp_path / "query.fasta", [("query", rna)])
    by_hand(
        tmp_path,
        "nhmmer -o /dev/null --noali --cpu 1 -E 0.001 --rna -A hits.sto "
        f"--F3 {0.02 if length < 50 else 1e-05} {query_file} rfam",
        f"hmmbuild --informat afa --rna query.hmm {query_file}",
    )
    hits = read_any((tmp_path / "hits.sto").read_bytes())
    fasta(
        tmp_path / "hits.fa",
        [(f"{r.name} {r.description}", r.letters.replace("-", "")) for r in hits],
    )
    by_hand(tmp_path, "hmmalign -o aligned.a3m --outformat A2M query.hmm hits.fa")
    expected = parse_a3m(f">query\n{rna}\n".encode() + (tmp_path / "aligned.a3m").read_bytes())
    problems: list[InputError] = []
    (protein,) = discover(tmp_path / "out", problems=problems)
    assert protein.sequence == QUERY
    assert [(type(p), p.item) for p in problems] == [(NoProtein, "c0"), (NoProtein, "asked_c2")]

    # `evofeed entries prepare` takes the folder of the search, with its RNA.
    items, _ = alignment_items(str(tmp_path / "out"))
    found = {record.name: record for record in (read_alignment(files) for _, *files in items)}
    alignment = found[alignment_name(rna, is_rna=True)]
    assert set(found) == {
        alignment.name,
        alignment_name(other, is_rna=True),
        alignment_name(QUERY, is_rna=False),
    }
    assert alignment.sources == ("nt_hits", "rfam_hits")
    (files,) = (files for _, *files in items if read_alignment(files).name == alignment.name)
    rows = parse_a3m(Path(files[1]).read_bytes())
    assert rows.sequences() == expected.sequences()
    assert rows.descriptions() == expected.descriptions()
    assert len(rows.sequences()) >= 6
    assert any(name.startswith("mirrored") for name in rows.descriptions())


def test_a_recipe_without_a_database_of_its_molecule_says_so(tmp_path: Path) -> None:
    databases, config = cook(
        "af3", [Database("rfam", fasta(tmp_path / "rfam", [("r", "ACGU" * 9)]))]
    )
    report = run_search(chains(QUERY, "ACGU" * 9), str(tmp_path / "out"), databases, config=config)
    assert [(item["chain_id"], item["message"]) for item in report.broken] == [
        ("c0", "no database of its kind of molecule is searched")
    ]
