"""The command lines of mmseqs on a GPU, taken down by a stand-in: no such build is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.featurize.search.family import mmseqs_db, require_programs

from evofeed.base.errors import InputError, SearchFailed
from evofeed.featurize import SearchConfig
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.featurize.search import Database, mmseqs, run_search
from evofeed.featurize.search.programs import Scratch
from evofeed.featurize.search.work import look_at

STAND_IN = """#!/usr/bin/env python3
import json, pathlib, sys
with open({log!r}, "a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
sys.exit(3 if sys.argv[1] == "result2msa" else 0)
"""


@pytest.mark.system
@pytest.mark.parametrize("server", [False, True])
def test_a_search_on_the_gpu_is_called_as_colabfold_calls_it(
    server: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    program = tmp_path / "mmseqs"
    program.write_text(STAND_IN.format(log=str(log)).replace("\\\\n", "\\n"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    config = SearchConfig.colabfold(gpu=True, gpu_server=server)
    with Scratch(30.0) as place, pytest.raises(SearchFailed):
        mmseqs.mmseqs(place, ["ACDE"], "/db/x", config)
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    (search,) = (call for call in calls if call[0] == "search")
    assert search[:5] == ["search", "queries", "/db/x", "hits", "tmp"]
    options = dict(zip(search[5::2], search[6::2], strict=True))
    assert options["--gpu"] == options["--prefilter-mode"] == "1" and "-s" not in options
    assert options.get("--gpu-server") == ("1" if server else None)
    assert (options["--num-iterations"], options["--max-seqs"]) == ("3", "10000")


@pytest.mark.system
def test_a_build_without_gpus_is_told_so_before_anything_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_programs()  # Debian's mmseqs has none
    database = Database("x", mmseqs_db(tmp_path / "x", [("a", "ACDEFGHIKLMNPQRSTVWY")]))
    chains = [ChainSource("c", sequence="ACDEFGHIKLMNPQRSTVWY")]
    with pytest.raises(InputError, match="knows no --gpu: leave it out"):
        run_search(chains, str(tmp_path / "out"), [database], config=SearchConfig(gpu=True))
    program = tmp_path / "mmseqs"
    program.write_text("#!/bin/sh\necho ' --gpu INT Use GPU (CUDA) if possible [0]'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert look_at(database, SearchConfig(gpu=True)).kind == "mmseqs"


def test_a_server_needs_a_gpu() -> None:
    with pytest.raises(ValueError, match="gpu_server"):
        SearchConfig(gpu_server=True)
    assert "--k-score" in SearchConfig.colabfold().mmseqs_options()
