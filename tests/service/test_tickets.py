"""The protocol of ColabFold's MSA server: what its clients hear, and when."""

from __future__ import annotations

import importlib
import io
import json
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import evofeed, own_packages
from tests.featurize.search.family import (
    cluster_db,
    family,
    fasta,
    hh_db,
    mmseqs_db,
    require_programs,
)
from tests.inside import units_inside
from tests.service.conftest import Start

from evofeed.base.errors import InputError
from evofeed.service import Client, ServiceSettings, serving
from evofeed.service.database.database import Database
from evofeed.service.database.tables import TicketRow
from evofeed.service.tickets import TicketQueue, Tickets
from evofeed.synth.entries import entry_cif

FAMILIES = [family(seed, 6, 60) for seed in range(9)]


@pytest.fixture(scope="module", autouse=True)
def inside() -> Iterator[None]:
    """Searches start no workers of their own, as `test_openapi.py` has them do."""
    with units_inside():
        yield


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("databases")
    rows = [
        (f"UniRef100_{f}_{n} Thing n=1 Tax=Some TaxID={n + 1} RepID=X", s)
        for f, kin in enumerate(FAMILIES)
        for n, s in enumerate(kin[1:])
    ]
    uniref = fasta(folder / "uniref.fasta", rows)
    return {"uniref": uniref, "env": fasta(folder / "env.fasta", rows[::2])}


@contextmanager
def searching(home: Path, **settings: Any) -> Iterator[httpx.Client]:
    """A client of a service that searches for whoever asks."""
    made = ServiceSettings(home=home, port=0, auth="off", msa_workers=1, **settings)
    with serving(made) as url, httpx.Client(base_url=url, timeout=300) as client:
        yield client


@pytest.fixture(scope="module")
def client(
    databases: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    with searching(tmp_path_factory.mktemp("home"), msa_databases=databases) as made:
        yield made


def ask(client: httpx.Client, *sequences: str, mode: str = "env") -> dict[str, Any]:
    """Hand sequences in as clients do, numbered from 101."""
    text = "".join(f">{n}\n{s}\n" for n, s in enumerate(sequences, 101))
    kind = "pair" if mode.startswith("pair") else "msa"
    answer: dict[str, Any] = client.post(f"/ticket/{kind}", data={"q": text, "mode": mode}).json()
    return answer


def fetch(client: httpx.Client, ticket: dict[str, Any]) -> dict[str, bytes]:
    """The files of a ticket, once it is complete."""
    while ticket["status"] in ("PENDING", "RUNNING"):
        time.sleep(0.05)
        ticket = client.get(f"/ticket/{ticket['id']}").json()
    assert ticket["status"] == "COMPLETE", ticket
    data = client.get(f"/result/download/{ticket['id']}").content
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {name: (tar.extractfile(name) or io.BytesIO()).read() for name in tar.getnames()}


def alignments(data: bytes) -> dict[int, list[str]]:
    """Rows by the number of the query, read as clients read them."""
    found: dict[int, list[str]] = {}
    number, is_new = 0, True
    for line in data.decode().splitlines(keepends=True):
        if "\0" in line:
            line, is_new = line.replace("\0", ""), True
        if line.startswith(">") and is_new:
            number, is_new = int(line[1:]), False
        elif line and line[0] != ">":
            found.setdefault(number, []).append(line.strip())
    return found


def test_alignments_come_as_clients_read_them_at_once_the_second_time(client: httpx.Client) -> None:
    queries = FAMILIES[0][0], FAMILIES[1][0]
    files = fetch(client, ask(client, *queries))
    names = {"uniref.a3m", "bfd.mgnify30.metaeuk30.smag30.a3m", "pdb70.m8"}
    assert set(files) == names
    for name, rows in (("uniref.a3m", 6), ("bfd.mgnify30.metaeuk30.smag30.a3m", 3)):
        found = alignments(files[name])
        assert [found[101][0], found[102][0]] == list(queries)
        assert len(found[101]) >= rows - 1 and len(found) == 2
    assert b"TaxID=1 " in files["uniref.a3m"]
    assert ask(client, *queries)["status"] == "COMPLETE"
    # Another ticket, of sequences that are known from this one.
    other = ask(client, queries[1], mode="all")
    assert other["status"] == "COMPLETE"
    assert (
        alignments(fetch(client, other)["uniref.a3m"])[101] == alignments(files["uniref.a3m"])[102]
    )


def test_a_selenoprotein_gets_its_alignment_and_spoils_no_batch(clustered: httpx.Client) -> None:
    """The program of clusters writes X for U; jackhmmer's rows are in `test_programs`."""
    queries = [FAMILIES[0][0], f"{FAMILIES[1][0][:30]}U{FAMILIES[1][0][31:]}", FAMILIES[2][0]]
    found = alignments(fetch(clustered, ask(clustered, *queries, mode="all"))["uniref.a3m"])
    assert [found[101 + n][0] for n in range(3)] == queries
    assert min(map(len, found.values())) > 3


def test_the_client_and_the_command_line_search_too(client: httpx.Client, tmp_path: Path) -> None:
    url = str(client.base_url).rstrip("/")
    with Client(url) as own:
        found = own.search(FAMILIES[0][0], seconds=0.05)
        with pytest.raises(InputError, match="letters A to Z"):
            own.search("AC-D")
    assert found["uniref.a3m"].count(b">") >= 5 and b"\0" not in found["uniref.a3m"]
    asked = tmp_path / "asked.fasta"
    asked.write_text(f">one\n{FAMILIES[0][0]}\n>two\n{FAMILIES[1][0]}\n")
    said = evofeed("search", asked, tmp_path / "out", url, "--json").out
    lines = [json.loads(line) for line in said.splitlines()]
    assert [line["name"] for line in lines] == ["one", "two"]
    assert (tmp_path / "out" / "one" / "uniref.a3m").read_bytes() == found["uniref.a3m"]
    assert lines[0]["rows"]["uniref.a3m"] == found["uniref.a3m"].count(b">")


def test_chains_are_paired_by_organism(client: httpx.Client) -> None:
    files = fetch(client, ask(client, FAMILIES[2][0], FAMILIES[3][0], mode="paircomplete"))
    text = files["pair.a3m"].decode().split("\0")
    heads = [[line for line in block.splitlines() if ">Uni" in line] for block in text[:2]]
    taxa = [[head.partition("TaxID=")[2].split()[0] for head in block] for block in heads]
    assert taxa[0] == taxa[1] and len(taxa[0]) >= 3
    assert all("UniRef100_2_" in h for h in heads[0]) and all("_3_" in h for h in heads[1])


@pytest.fixture(scope="module")
def clustered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Of a service on clusters that has templates for the first family's query."""
    require_programs()
    folder = tmp_path_factory.mktemp("clustered")
    _, *kin = FAMILIES[0]
    rows = [(f"k{f}_{n}", s) for f, one in enumerate(FAMILIES[:3]) for n, s in enumerate(one[1:])]
    databases = {
        "uniref": cluster_db(folder / "uniref", rows),
        "pdb": mmseqs_db(folder / "pdb", [("133l_A", kin[0]), ("1ckd_A", FAMILIES[1][0])]),
    }
    templates = hh_db(folder / "pdb70", {"133l_A": [("133l_A", kin[0])]})
    (folder / "mmcif").mkdir()
    (folder / "mmcif" / "133l.cif").write_text(entry_cif("133l", 0))
    mmcif = str(folder / "mmcif")
    with searching(
        folder / "home", msa_databases=databases, msa_templates=templates, msa_mmcif=mmcif
    ) as made:
        yield made


def test_templates_are_named_in_the_result_and_fetched_with_their_structures(
    clustered: httpx.Client,
) -> None:
    client, query = clustered, FAMILIES[0][0]
    files = fetch(client, ask(client, query, mode="env"))
    (hit,) = files["pdb70.m8"].decode().splitlines()
    assert hit.split("\t")[:2] == ["101", "133l_A"] and hit.endswith("M")
    assert len(alignments(files["uniref.a3m"])[101]) > 3
    assert fetch(client, ask(client, query, mode="env-notemplates"))["pdb70.m8"] == b""
    packed = client.get("/template/133l_A,1ckd_A").content
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert {"133l.cif", "pdb70_a3m.ffdata", "pdb70_a3m.ffindex"} <= set(tar.getnames())
        assert "1ckd.cif" not in tar.getnames()  # it has no alignment


def test_tickets_outlive_the_service(tmp_path: Path, databases: dict[str, str]) -> None:
    settings = ServiceSettings(home=tmp_path, msa_databases=databases, msa_workers=1)
    with Database(f"sqlite:///{tmp_path / 'tickets.sqlite3'}") as database:
        database.upgrade()
        tickets = Tickets(settings, database)
        asked = tickets.submit("mine", FAMILIES[3][0], "all").id
        assert tickets.get(asked, "theirs") is None
        tickets.close()
        again = Tickets(settings, database)
        again.start()
        while (ticket := again.get(asked, "mine")) is None or ticket.state != "COMPLETE":
            time.sleep(0.05)
        assert len(again.result(ticket)) > 100
        again.close()


def test_whoever_had_a_turn_waits_for_those_who_had_none(start_any: Start) -> None:
    start_any()
    queue = TicketQueue(start_any.database, "cache", 50)
    for number, who in enumerate(["busy", "busy", "busy", "late"]):
        sequences = ["ACDE"] * 64  # a batch of its own
        queue.add(
            TicketRow(
                id=f"{number}", principal=who, names=["1"], sequences=sequences, mode="all",
                state="PENDING", message="", taken_at=0.0,
            )
        )  # fmt: skip
    taken = [[ticket.id for ticket in queue.take()] for _ in range(5)]
    assert taken == [["0"], ["3"], ["1"], ["2"], []]
    queue.recover()
    assert len(queue.take()) == 1, "what a process that is gone had begun is searched again"


def test_forms_of_every_kind_are_read_and_what_cannot_be_searched_is_refused_in_clients_words(
    start: Start, client: httpx.Client
) -> None:
    many = "".join(f">{n}\nAC\n" for n in range(101))
    too_many = client.post("/ticket/msa", data={"q": many, "mode": "all"})
    assert (too_many.status_code, too_many.json()["status"]) == (422, "ERROR")
    for q, mode in (("", "all"), (">1\nAC-D\n", "all"), (">1\nACD\n", "none such")):
        assert client.post("/ticket/msa", data={"q": q, "mode": mode}).json()["status"] == "ERROR"
    assert client.get(f"/ticket/{'0' * 43}").json()["status"] == "ERROR"
    none = start()
    answer = none.post("/ticket/msa", data={"q": ">101\nACDE\n", "mode": "all"})
    assert (answer.status_code, answer.json()["status"]) == (404, "MAINTENANCE")
    assert none.get("/template/1abc_A").status_code == 404
    assert client.get(f"/result/download/{'0' * 43}").status_code == 404
    form = {"q": f">101\n{FAMILIES[0][0]}\n", "mode": "all"}
    parts = {name: (None, value) for name, value in form.items()}
    first = client.post("/ticket/msa", data=form).json()
    assert client.post("/ticket/msa", files=parts).json()["id"] == first["id"]
    refused = client.post("/ticket/msa", json=form)
    assert refused.json()["status"] == "ERROR" and "application/json" in refused.json()["detail"]


def test_a_token_is_the_password_of_clients_that_know_no_tokens(
    start: Start, databases: dict[str, str]
) -> None:
    client = start(msa_databases=databases, auth="on")
    form = {"q": f">101\n{FAMILIES[0][0]}\n", "mode": "all"}
    for path in ("/ticket/msa", "/ticket/pair"):
        none = client.post(path, data=form)  # a client reads these two fields whatever the status
        assert (none.status_code, none.json()["status"], none.json()["id"]) == (401, "ERROR", "")
        assert "token" in none.json()["detail"]
    token, other = (start.token("jobs") for _ in range(2))
    assert client.post("/ticket/msa", data=form, auth=("me", token[:-1] + "!")).status_code == 401
    client.auth = ("me", token)
    ticket = client.post("/ticket/msa", data=form).json()
    assert len(alignments(fetch(client, ticket)["uniref.a3m"])[101]) > 3
    answer = client.get(f"/ticket/{ticket['id']}", auth=("you", other))
    assert answer.json()["status"] == "ERROR"
    client.auth, client.headers = None, httpx.Headers({"X-API-Key": token})
    keyed = client.post("/ticket/msa", data=form)
    assert keyed.json() == {"id": ticket["id"], "status": "COMPLETE"}
    wrong = client.get("/ticket/no-such-id")
    assert (wrong.status_code, wrong.json()["status"]) == (422, "ERROR")


def test_a_sequence_as_long_as_titin_is_taken(
    start: Start, databases: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tickets, "start", lambda self: None)  # to search it takes its time
    titin = "MTTQAPTFTQPLQSVVVLEGSTATF" * 1374  # 34,350 letters
    assert ask(start(msa_databases=databases), titin)["status"] in ("PENDING", "RUNNING")


def test_templates_that_are_not_there_stop_the_service_before_it_starts(
    tmp_path: Path, databases: dict[str, str]
) -> None:
    both = {**databases, "pdb": str(tmp_path / "pdb")}
    with pytest.raises(ValueError, match="there is no database"):
        ServiceSettings(home=tmp_path, msa_databases=both)
    (tmp_path / "pdb.dbtype").touch()
    with pytest.raises(ValueError, match="templates need three settings"):
        ServiceSettings(home=tmp_path, msa_databases=both)
    with pytest.raises(ValueError, match=r"gone_a3m\.ffindex does not exist"):
        ServiceSettings(
            home=tmp_path, msa_databases=both, msa_templates=f"{tmp_path}/gone", msa_mmcif=tmp_path
        )


def own_client(module: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`run_mmseqs2` of ColabFold or Boltz, which waits less; `make projects` installs them."""
    own_packages(monkeypatch, module.partition(".")[0])
    monkeypatch.setattr("time.sleep", lambda seconds, rest=time.sleep: rest(min(seconds, 0.1)))
    run: Callable[..., Any] = importlib.import_module(module).run_mmseqs2
    return run


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module", ["boltz.data.msa.mmseqs2", "colabfold.colabfold"])
def test_the_clients_of_colabfold_and_boltz_themselves_get_rows_pairs_and_the_reason(
    module: str,
    start: Start,
    databases: dict[str, str],
    clustered: httpx.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And ColabFold's templates, and two dozen of its clients at once their own rows."""
    run = own_client(module, monkeypatch)
    start(msa_databases=databases, auth="on")
    url, token = start.url, start.token("jobs")
    named = url.replace("://", f"://me:{token}@")
    queries = [FAMILIES[2][0], FAMILIES[3][0]]
    single = run(queries, str(tmp_path / "one"), host_url=named)
    assert [text.splitlines()[1] for text in single] == queries
    assert all(text.count(">") > 4 for text in single)
    paired = run(queries, str(tmp_path / "two"), use_pairing=True, host_url=named)
    assert paired[0].count(">") == paired[1].count(">") > 3
    with pytest.raises(Exception, match="MMseqs2 API is giving errors"):
        run(queries, str(tmp_path / "three"), host_url=url)
    if "boltz" in module:
        key = {"X-API-Key": token}
        again = run(queries, str(tmp_path / "four"), host_url=url, auth_headers=key)
        assert again == single
        return
    host = str(clustered.base_url).rstrip("/")
    how: dict[str, Any] = {"use_env": False, "use_templates": True, "host_url": host}
    rows, folders = run([FAMILIES[0][0]], str(tmp_path / "own"), **how)
    assert rows[0].count(">") > 3
    assert Path(folders[0], "133l.cif").is_file() and Path(folders[0], "pdb70_a3m.ffdata").is_file()
    many = [sequence for kin in FAMILIES for sequence in kin][:24]

    def ask_for(number: int) -> str:
        place = str(tmp_path / f"{number}")
        return str(run([many[number]], place, host_url=named, use_env=False)[0])

    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(ask_for, range(24)))
    assert [text.splitlines()[1] for text in found] == many
    assert all(text.count(">") > 4 for text in found)
