"""A bare FASTA and a sequence database are enough."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.featurize.golden import INPUTS, openfold_record, sources

from evofeed.errors import InputError
from evofeed.featurize import SearchConfig, discover, featurize_chain, search_fasta
from evofeed.featurize import search as search_module

EMBEDDED = SearchConfig(program="pyhmmer")


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


def test_a_fasta_and_a_database_become_a_record_with_templates(data: tuple[Path, str]) -> None:
    folder, chain_id = data
    seen: list[tuple[int, int]] = []
    (source,) = search_fasta(
        str(folder / "query.fasta"),
        str(folder / "out"),
        search_dbs=[str(folder / "uniref.fasta")],
        template_db=str(folder / "pdb_seqres.fasta"),
        template_mmcif_dir=str(INPUTS[0] / "template_mmcif"),
        config=EMBEDDED,
        progress=lambda *now: seen.append(now),
    )
    assert seen == [(1, 1)]
    assert discover(folder / "out", template_mmcif_dir=INPUTS[0] / "template_mmcif") == [source]
    record = featurize_chain(source)
    want = openfold_record(chain_id)
    assert record.sequence == want.sequence and record.description.startswith(chain_id)
    assert 1 < record.num_alignments <= 30
    assert set(want.template_domain_names) <= set(record.template_domain_names)
    by_name = dict(zip(record.template_domain_names, record.template_sequence, strict=True))
    for name, row in zip(want.template_domain_names, want.template_sequence, strict=True):
        same = sum(a == b != "-" for a, b in zip(by_name[name], row, strict=True))
        assert same >= 0.9 * sum(c != "-" for c in row)


def test_results_are_cached_by_content(
    data: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = data
    runs = []
    real = search_module.hmmer.jackhmmer
    monkeypatch.setattr(
        search_module.hmmer, "jackhmmer", lambda *a, **k: (runs.append(a), real(*a, **k))[1]
    )

    def search(out: str, **changes: object) -> bytes:
        (source,) = search_fasta(
            str(folder / "query.fasta"),
            str(folder / out),
            search_dbs=[str(folder / "uniref.fasta")],
            cache_dir=str(folder / "cache"),
            config=SearchConfig(program="pyhmmer", **changes),  # type: ignore[arg-type]
        )
        assert source.alignment_dir is not None
        return (Path(source.alignment_dir) / "uniref_hits.sto").read_bytes()

    first = search("one")
    assert search("two", threads=2) == first and len(runs) == 1
    search("three", e_value=1e-9)
    assert len(runs) == 2
    with (folder / "uniref.fasta").open("a") as handle:
        handle.write(">more\nACDEFGH\n")
    assert search("four") == first and len(runs) == 3


def test_a_sequence_without_relatives_is_its_own_alignment(tmp_path: Path) -> None:
    (tmp_path / "q.fasta").write_text(">lone\nMKALIVLGLVLLSVTVQGKVFERCELARTLKRLG\n")
    (tmp_path / "db.fasta").write_text(">a\nGGGGGGGGGGGGGGGGGGGGPPPPPPPPPPPPPPP\n")
    (source,) = search_fasta(
        str(tmp_path / "q.fasta"),
        str(tmp_path / "out"),
        search_dbs=[str(tmp_path / "db.fasta")],
        template_db=str(tmp_path / "db.fasta"),
        template_mmcif_dir=str(tmp_path),
        config=EMBEDDED,
    )
    record = featurize_chain(source)
    assert (record.num_alignments, record.num_templates) == (1, 0)


def test_a_missing_database_is_one_typed_error(tmp_path: Path) -> None:
    (tmp_path / "q.fasta").write_text(">lone\nACDEFGHIKL\n")
    with pytest.raises(InputError, match="no such sequence database"):
        search_fasta(str(tmp_path / "q.fasta"), str(tmp_path), search_dbs=[str(tmp_path / "gone")])


@pytest.mark.parametrize(
    ("marker", "program", "flag", "suffix"),
    [
        ("db", "jackhmmer", "-A", "sto"),
        ("db_cs219.ffdata", "hhblits", "-oa3m", "a3m"),
        ("db.dbtype", "mmseqs", "", "a3m"),
    ],
)
def test_programs_on_the_path_are_called_with_the_query(
    marker: str,
    program: str,
    flag: str,
    suffix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "q.fasta").write_text(">lone\nACDEFGHIKL\n")
    (tmp_path / marker).write_text(">x\nACDEFGHIKL\n")
    made = ">query\nACDEFGHIKL\n>x\nAC-EFGHIKL\n" if suffix == "a3m" else "query AC\nx A-\n"
    script = f"""#!/bin/sh
echo "$@" >> {tmp_path}/calls
[ "$1" = result2msa ] && out=$5
while [ $# -gt 0 ]; do [ "$1" = "{flag}" ] && out=$2; shift; done
[ -n "$out" ] && printf '{made.replace(chr(10), chr(92) + "n")}' > "$out"
exit 0
"""
    tool = tmp_path / "bin" / program
    tool.parent.mkdir()
    tool.write_text(script)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tool.parent))  # the machine may have the real one
    (source,) = search_fasta(
        str(tmp_path / "q.fasta"), str(tmp_path / "out"), search_dbs=[str(tmp_path / "db")]
    )
    (_, result) = source.alignment_files()[0]
    assert result.name == f"db_hits.{suffix}" and Path(result.path).read_text() == made
    assert "query.fasta" in (tmp_path / "calls").read_text()
    tool.write_text("#!/bin/sh\necho out of memory >&2\nexit 3\n")
    with pytest.raises(InputError, match=f"{program} ended with 3: out of memory"):
        search_fasta(
            str(tmp_path / "q.fasta"), str(tmp_path / "new"), search_dbs=[str(tmp_path / "db")]
        )
    tool.unlink()
    if program != "jackhmmer":  # else pyhmmer steps in
        with pytest.raises(InputError, match="not on the PATH"):
            search_fasta(
                str(tmp_path / "q.fasta"), str(tmp_path / "new"), search_dbs=[str(tmp_path / "db")]
            )


ON_RAY = """
import sys, ray
from evofeed.featurize import SearchConfig, search_fasta
folder, where = sys.argv[1:]
ray.init(address="local", num_cpus=2, include_dashboard=False, _temp_dir=where)
found = search_fasta(
    f"{folder}/two.fasta", f"{folder}/on_ray", search_dbs=[f"{folder}/uniref.fasta"],
    config=SearchConfig(program="pyhmmer", threads=2), on_ray=True,
)
print([source.chain_id for source in found])
try:
    search_fasta(f"{folder}/two.fasta", folder, search_dbs=["/gone"], on_ray=True)
except Exception as error:
    print(type(error).__name__, error)
ray.shutdown()
"""


@pytest.mark.cluster
@pytest.mark.slow
def test_searches_run_as_ray_tasks_that_hold_their_threads(data: tuple[Path, str]) -> None:
    folder, chain_id = data
    sequence = openfold_record(chain_id).sequence
    (folder / "two.fasta").write_text(f">one\n{sequence}\n>two\n{sequence[10:]}\n")
    where = tempfile.mkdtemp(prefix="ef-", dir="/tmp")
    # A process of its own: what Ray keeps in one would reach other tests.
    try:
        done = subprocess.run(
            [sys.executable, "-c", ON_RAY, str(folder), where],
            env={**os.environ, "RAY_AUTH_MODE": "disabled"},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    finally:
        shutil.rmtree(where, ignore_errors=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[-2] == "['one', 'two']"
    assert lines[-1].startswith("InputError") and "no such sequence database" in lines[-1]
    here = search_fasta(
        str(folder / "two.fasta"),
        str(folder / "here"),
        search_dbs=[str(folder / "uniref.fasta")],
        config=EMBEDDED,
    )
    for source in here:
        file = f"alignments/{source.chain_id}/uniref_hits.sto"
        assert (folder / "on_ray" / file).read_bytes() == (folder / "here" / file).read_bytes()
