"""A bare FASTA and a sequence database are enough."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.golden import INPUTS, openfold_record, sources
from tests.featurize.job.stage import on_stage
from tests.featurize.job.test_ray import a_cluster
from tests.featurize.search.family import family, fasta

from evofeed.base.errors import InputError, JobError
from evofeed.featurize import (
    ChainSource,
    SearchConfig,
    SearchOptions,
    discover,
    featurize_chain,
    run_search,
    search_fasta,
)
from evofeed.featurize.formats.a3m import parse_a3m
from evofeed.featurize.formats.reading import read_bytes
from evofeed.featurize.formats.stockholm import parse_stockholm
from evofeed.featurize.job.executors import Node
from evofeed.featurize.search.config import Database
from evofeed.featurize.search.options import SearchReport
from evofeed.featurize.search.plan import Schedule, make_units
from evofeed.featurize.search.searchers import Query


def likeness_to_templates(name: str) -> int:
    """Letters the chain shares with its templates: a search must find what is like it."""
    record = openfold_record(name)
    return sum(
        a == b
        for row in record.template_sequence
        for a, b in zip(row, record.sequence, strict=True)
    )


@pytest.fixture
def data(tmp_path: Path, golden: Path) -> tuple[Path, str]:
    """A query and a database made of its recorded relatives and of strangers."""
    chain_id = max(sources(), key=likeness_to_templates)
    record = openfold_record(chain_id)
    letters = "ARNDCQEGHILKMFPSTWYVX-"
    rows = ["".join(letters[c] for c in row).replace("-", "") for row in record.msa[1:200:7]]
    strangers = [openfold_record(name).sequence for name in sources() if name != chain_id]
    text = "".join(f">rel{i} kin\n{row}\n" for i, row in enumerate(rows))
    text += "".join(f">other{i}\n{row}\n" for i, row in enumerate(strangers))
    (tmp_path / "uniref.fasta").write_text(text)
    (tmp_path / "query.fasta").write_text(f">{chain_id} a protein\n{record.sequence}\n")
    pdb = [
        f">{name} mol:protein length:{len(row.strip('-'))}  LYSOZYME\n{row.replace('-', '')}\n"
        for name, row in zip(record.template_domain_names, record.template_sequence, strict=True)
    ]
    (tmp_path / "pdb_seqres.fasta").write_text("".join(pdb) + ">1xxx_A mol:na length:4\nACGT\n")
    return tmp_path, chain_id


def text_of(source: ChainSource, name: str) -> bytes:
    """An alignment of a chain, by the name it has in the index."""
    (ref,) = [ref for _, ref in source.alignment_files() if ref.plain_name == name]
    return read_bytes(ref)


def test_a_fasta_and_a_database_become_a_record_with_templates(data: tuple[Path, str]) -> None:
    folder, chain_id = data
    templates = str(INPUTS[0] / "template_mmcif")
    (source,) = search_fasta(
        str(folder / "query.fasta"),
        str(folder / "out"),
        search_dbs=[str(folder / "uniref.fasta")],
        template_db=str(folder / "pdb_seqres.fasta"),
        template_mmcif_dir=templates,
    )
    assert discover(folder / "out", template_mmcif_dir=templates) == [source]
    record = featurize_chain(source)
    want = openfold_record(chain_id)
    assert record.sequence == want.sequence and record.description.startswith(chain_id)
    assert 1 < record.num_alignments <= 30
    assert set(want.template_domain_names) <= set(record.template_domain_names)
    by_name = dict(zip(record.template_domain_names, record.template_sequence, strict=True))
    for name, row in zip(want.template_domain_names, want.template_sequence, strict=True):
        same = sum(a == b != "-" for a, b in zip(by_name[name], row, strict=True))
        assert same >= 0.9 * sum(c != "-" for c in row)


def chains(*sequences: str) -> list[ChainSource]:
    return [ChainSource(f"c{n}", sequence=s) for n, s in enumerate(sequences)]


def test_a_sequence_is_searched_once_and_never_again(tmp_path: Path) -> None:
    query, *kin = family(1, 6)
    db = fasta(tmp_path / "db.fasta", [(f"k{n}", s) for n, s in enumerate(kin)])

    def search(out: str, *, db: str = db, threads: int = 1, **settings: object) -> SearchReport:
        return run_search(
            chains(query, query[7:], query),
            str(tmp_path / out),
            [Database.parse(db)],
            config=SearchConfig(threads=threads, **settings),  # type: ignore[arg-type]
            options=SearchOptions(workers=1, cache_dir=str(tmp_path / "cache")),
        )

    first = search("one")
    assert (first.num_chains, first.num_sequences, first.searched, first.cache_hits) == (3, 2, 2, 0)
    again = search("two", threads=2)
    assert (again.searched, again.cache_hits, again.digest) == (0, 2, first.digest)
    assert search("three", e_value=1e-9).searched == 2
    assert search("four", db=f"{db},max_hits=3").searched == 2
    for source in discover(tmp_path / "four"):
        assert len(parse_stockholm(text_of(source, "db_hits.sto")).sequences()) == 3
    moved = shutil.move(db, tmp_path / "moved.fasta")
    shutil.copy(moved, db)
    assert search("five").searched == 0
    with Path(db).open("a") as handle:
        handle.write(">more\nACDEFGH\n")
    assert search("six").searched == 2


def test_a_sequence_without_relatives_is_its_own_alignment(tmp_path: Path) -> None:
    (tmp_path / "q.fasta").write_text(">lone\nMKALIVLGLVLLSVTVQGKVFERCELARTLKRLG\n")
    (tmp_path / "db.fasta").write_text(">a\nGGGGGGGGGGGGGGGGGGGGPPPPPPPPPPPPPPP\n")
    (tmp_path / "cif").mkdir()
    (tmp_path / "cif" / "1abc.cif").touch()  # a folder of structures, none of which is needed
    (source,) = search_fasta(
        str(tmp_path / "q.fasta"),
        str(tmp_path / "out"),
        search_dbs=[str(tmp_path / "db.fasta")],
        template_db=f"pdb={tmp_path / 'db.fasta'}",
        template_mmcif_dir=str(tmp_path / "cif"),
    )
    record = featurize_chain(source)
    assert (record.num_alignments, record.num_templates) == (1, 0)


def test_a_missing_database_is_one_typed_error(tmp_path: Path) -> None:
    (tmp_path / "q.fasta").write_text(">lone\nACDEFGHIKL\n")
    with pytest.raises(InputError, match="no such sequence database"):
        search_fasta(str(tmp_path / "q.fasta"), str(tmp_path), search_dbs=[str(tmp_path / "gone")])


FAMILY = family(3, 4)
WHOLE = f">query\n{FAMILY[0]}\n>x\n{FAMILY[0]}\n"


def fake(folder: Path, body: str) -> None:
    """A hhblits for the PATH; `$out` is where it is to write, `$in` has the query."""
    tool = folder / "hhblits"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(
        f"""#!/bin/sh
[ "$1" = -h ] && echo "HHblits 3.3.0 (fake)" && exit 0
while [ $# -gt 0 ]; do
[ "$1" = -oa3m ] && out=$2; [ "$1" = -i ] && in=$2; shift; done
{body}
"""
    )
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)


def hh_file(prefix: Path) -> Database:
    """What passes for a database of hh-suite where hhblits is a fake."""
    prefix.with_name(f"{prefix.name}_cs219.ffdata").write_text(">x\nACD\n")
    return Database.parse(str(prefix))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("echo out of memory >&2; exit 3", "ended with 3: out of memory"),
        ("echo loading >&2; exec sleep 600", "took longer than 2 s: loading"),
        ("echo bye >&2; kill -9 $$", "was killed by SIGKILL: bye"),
        ("exit 0", "wrote nothing"),
        ("HALF", "half a result"),
    ],
)
def test_a_program_that_crashes_hangs_or_writes_half_is_blamed_and_tried_again(
    body: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = hh_file(tmp_path / "db")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    whole = tmp_path / "whole"
    whole.write_text(WHOLE)
    half = tmp_path / "half"
    half.write_text(WHOLE[: -len("L\n")])
    body = body.replace("HALF", f'cp {half} "$out"')
    deadline = 2.0 if "sleep" in body else 600.0
    options = SearchOptions(workers=1, deadline=deadline)

    fake(tmp_path / "bin", f"echo call >> {tmp_path}/calls\n{body}")
    report = run_search(chains(FAMILY[0]), str(tmp_path / "out"), [database], options=options)
    assert report.num_broken == 1 and says in report.broken[0]["message"]
    assert "hhblits" in report.broken[0]["message"] or "half" in says
    assert (tmp_path / "calls").read_text().count("call") == 3
    if "half" not in says:  # once is no more than bad luck
        trouble = f"[ -e {tmp_path}/done ] || {{ touch {tmp_path}/done; {body}; }}"
        fake(tmp_path / "bin", f'{trouble}\ncp {whole} "$out"')
        report = run_search(chains(FAMILY[0]), str(tmp_path / "out"), [database], options=options)
        assert report.num_broken == 0 and report.searched == 2


def test_a_program_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for marker, program in (("hh_cs219.ffdata", "hhblits"), ("mm.dbtype", "mmseqs")):
        (tmp_path / marker).write_text("x")
        database = Database.parse(str(tmp_path / marker[:2]))
        with pytest.raises(InputError, match=f"needs {program}, which is not on the PATH"):
            run_search(chains(FAMILY[0]), str(tmp_path / "out"), [database])


def test_a_database_that_changes_in_the_middle_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = hh_file(tmp_path / "db")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "whole").write_text(WHOLE)
    change = f'echo ">y" >> {database.path}_cs219.ffdata'
    fake(tmp_path / "bin", f'{change}; cp {tmp_path / "whole"} "$out"')
    with pytest.raises(JobError, match="not the one the search began with"):
        run_search(chains(FAMILY[0]), str(tmp_path / "out"), [database])


@pytest.mark.system
@pytest.mark.slow
def test_searches_on_ray_give_what_searches_here_give(data: tuple[Path, str]) -> None:
    folder, chain_id = data
    sequence = openfold_record(chain_id).sequence
    sequences = [sequence[start:] for start in range(4)]

    def act() -> list[SearchReport]:
        return [
            run_search(
                chains(*sequences),
                str(folder / executor),
                [Database.parse(str(folder / "uniref.fasta"))],
                options=SearchOptions(executor=executor, workers=2),
            )
            for executor in ("ray", "local")
        ]

    reports = on_stage(act)
    assert reports[0].digest == reports[1].digest
    assert [report.searched for report in reports] == [4, 4]


def test_a_full_disk_is_one_line_and_run_again_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, *kin = family(1, 3)
    database = hh_file(tmp_path / "db")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    fake(tmp_path / "bin", "echo Fatal: No space left on device >&2; exit 1")

    def search() -> SearchReport:
        return run_search(chains(query, kin[1]), str(tmp_path / "out"), [database])

    with pytest.raises(JobError, match="no space left for the programs' files"):
        search()
    fake(tmp_path / "bin", 'cp "$in" "$out"')
    real, synced = os.fsync, []

    def full(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(JobError, match=r"cache of searches cannot be used.*free some space"):
        search()
    monkeypatch.setattr(os, "fsync", real)
    report = search()
    assert (report.searched, report.cache_hits, report.num_broken) == (1, 1, 0)


@pytest.mark.system
@pytest.mark.slow
def test_a_database_is_searched_on_the_node_that_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, *kin = family(1, 6)
    here, there = (hh_file(tmp_path / name) for name in ("everywhere", "on_two"))
    fake(tmp_path / "bin", f'echo "$EVOFEED_NODE" >> {tmp_path}/calls; cp "$in" "$out"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def search(database: Database, cluster: Any) -> SearchReport:
        options = SearchOptions(executor="ray", ray_address=cluster.address)
        sequences = chains(*(query[n:] for n in range(4)))
        out = str(tmp_path / f"{database.name}_out")
        return run_search(sequences, out, [database], options=options)

    def act() -> list[SearchReport]:
        with a_cluster(1) as cluster:
            small = {"num_cpus": 1, "object_store_memory": 128 << 20}
            for number, name in enumerate(("two", "three")):
                home = tmp_path / name  # with one shard, which no other node has
                home.mkdir()
                fasta(home / f"split-{number:05d}-of-00002", split[number::2])
                monkeypatch.chdir(home)
                offers = {f"db:split@{number}": 1} | ({"db:on_two": 1} if name == "two" else {})
                cluster.add_node(**small, resources=offers, env_vars={"EVOFEED_NODE": name})
            monkeypatch.chdir(tmp_path)
            split_in_two = [search(Database.parse("split@2"), cluster) for _ in range(2)]
            return [*split_in_two, search(there, cluster), search(here, cluster)]

    split = [(f"kin{n} of many", s) for n, s in enumerate([*kin, *family(9, 4), *kin[::-1]])]
    *joined, one, both = on_stage(act)
    whole = Database.parse(f"split={fasta(tmp_path / 'whole.fasta', split)}")
    run_search(chains(query), str(tmp_path / "alone"), [whole])
    (alone,), (first, *_) = discover(str(tmp_path / "alone")), discover(str(tmp_path / "split_out"))
    rows = parse_a3m(text_of(first, "split_hits.a3m"))
    want = parse_stockholm(text_of(alone, "split_hits.sto"))
    assert sorted(rows.sequences()[1:]) == sorted(want.sequences()[1:])
    assert len(rows.sequences()) > 5
    assert [(r.searched, r.cache_hits, r.num_broken) for r in joined] == [(4, 0, 0), (0, 4, 0)]
    assert [(report.searched, report.num_broken) for report in (one, both)] == [(4, 0), (4, 0)]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[:4] == ["two"] * 4
    assert "" in calls[4:]  # the head takes its share of what is on both


def test_a_node_works_through_one_database_before_it_takes_the_next() -> None:
    databases = [Database(name, name) for name in ("a", "b")]
    both = Node("both", 1, {"db:a": 1.0, "db:b": 1.0})
    second = Node("second", 1, {"db:b": 1.0})
    nodes = [both, second]
    queries = [Query(f"k{n}", "ACDE" * n) for n in range(1, 7)]
    units = [u for number in (0, 1) for u in make_units(number, "fasta", queries, 2)]
    schedule = Schedule(databases, units)
    order = []
    while schedule:
        for node in (both, both, second):
            unit = schedule.take(node, nodes)
            order += [(node.node_id, unit.database)] if unit else []
    first = [number for node, number in order if node == "both"]
    assert first == sorted(first) and set(first) == {0, 1}
    assert {number for node, number in order if node == "second"} == {1}
    assert sum(len(unit.queries) for unit in units) == 12
    failed = dataclasses.replace(units[-1], avoid="second")
    schedule.put(failed)
    assert schedule.take(second, nodes) is None
    assert schedule.take(both, nodes) == failed
    schedule.put(failed)
    assert schedule.take(second, [second]) == failed  # there is no other
