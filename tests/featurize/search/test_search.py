"""A bare FASTA and a sequence database are enough."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest
from tests.featurize.search.family import family, fasta, search_fasta
from tests.inside import Inside

from evofeed.base.errors import InputError, JobError
from evofeed.featurize import (
    ChainSource,
    SearchConfig,
    SearchOptions,
    discover,
    featurize_chain,
    run_search,
)
from evofeed.featurize.formats.reading import read_bytes
from evofeed.featurize.formats.stockholm import parse_stockholm
from evofeed.featurize.search.config import Database, SearchReport

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("inside")]


def text_of(source: ChainSource, name: str) -> bytes:
    """An alignment of a chain, by its name in the index."""
    (ref,) = [ref for _, ref in source.alignment_files() if ref.plain_name == name]
    return read_bytes(ref)


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
        [str(tmp_path / "db.fasta")],
        template_db=f"pdb={tmp_path / 'db.fasta'}",
        template_mmcif_dir=str(tmp_path / "cif"),
    )
    record = featurize_chain(source)
    assert (record.num_alignments, record.num_templates) == (1, 0)


def test_a_missing_database_is_one_typed_error(tmp_path: Path) -> None:
    (tmp_path / "q.fasta").write_text(">lone\nACDEFGHIKL\n")
    with pytest.raises(InputError, match="no such sequence database"):
        search_fasta(str(tmp_path / "q.fasta"), str(tmp_path), [str(tmp_path / "gone")])


FAMILY = family(3, 4)
WHOLE = f">query\n{FAMILY[0]}\n>x\n{FAMILY[0]}\n"


def fake_hhblits(folder: Path, body: str) -> None:
    """Write an executable `hhblits` with this body; `$in` is the query, `$out` the result."""
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


def fake_hh_database(prefix: Path) -> Database:
    """A file that passes for a database of hh-suite if hhblits is a fake."""
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
    database = fake_hh_database(tmp_path / "db")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    whole = tmp_path / "whole"
    whole.write_text(WHOLE)
    half = tmp_path / "half"
    half.write_text(WHOLE[: -len("L\n")])
    body = body.replace("HALF", f'cp {half} "$out"')
    deadline = 2.0 if "sleep" in body else 600.0
    options = SearchOptions(workers=1, deadline=deadline)

    fake_hhblits(tmp_path / "bin", f"echo call >> {tmp_path}/calls\n{body}")
    report = run_search(chains(FAMILY[0]), str(tmp_path / "out"), [database], options=options)
    assert report.num_broken == 1 and says in report.broken[0]["message"]
    assert "hhblits" in report.broken[0]["message"] or "half" in says
    assert (tmp_path / "calls").read_text().count("call") == 3
    if "half" not in says:  # once is no more than bad luck
        trouble = f"[ -e {tmp_path}/done ] || {{ touch {tmp_path}/done; {body}; }}"
        fake_hhblits(tmp_path / "bin", f'{trouble}\ncp {whole} "$out"')
        report = run_search(chains(FAMILY[0]), str(tmp_path / "out"), [database], options=options)
        assert report.num_broken == 0 and report.searched == 2


def test_a_program_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for marker, program in (("hh_cs219.ffdata", "hhblits"), ("mm.dbtype", "mmseqs")):
        (tmp_path / marker).write_text("x")
        database = Database.parse(str(tmp_path / marker[:2]))
        with pytest.raises(InputError, match=f"needs {program}, which is not on the PATH"):
            run_search(chains(FAMILY[0]), str(tmp_path / "out"), [database])


def test_a_database_that_changes_in_the_middle_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = fake_hh_database(tmp_path / "db")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "whole").write_text(WHOLE)
    change = f'echo ">y" >> {database.path}_cs219.ffdata'
    fake_hhblits(tmp_path / "bin", f'{change}; cp {tmp_path / "whole"} "$out"')
    with pytest.raises(JobError, match="not the one the search began with"):
        run_search(chains(FAMILY[0]), str(tmp_path / "out"), [database])


def test_a_full_disk_is_one_line_and_run_again_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, *kin = family(1, 3)
    database = fake_hh_database(tmp_path / "db")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    fake_hhblits(tmp_path / "bin", "echo Fatal: No space left on device >&2; exit 1")

    def search() -> SearchReport:
        return run_search(chains(query, kin[1]), str(tmp_path / "out"), [database])

    with pytest.raises(JobError, match="no space left for the programs' files"):
        search()
    fake_hhblits(tmp_path / "bin", 'cp "$in" "$out"')
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


def test_databases_are_searched_one_after_the_other_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, *kin = family(1, 6)
    paths = [fasta(tmp_path / name, [(name, kin[0])]) for name in ("b.fa", "a.fa")]
    sent: list[str] = []
    submit = Inside.submit
    monkeypatch.setattr(
        Inside, "submit", lambda self, task, *more: (sent.append(more[1]), submit(self, task))
    )
    run_search(chains(query, *kin), str(tmp_path / "out"), [*map(Database.parse, paths)])
    assert sent == sorted(sent, reverse=True) and set(sent) == {"db:a", "db:b"}
