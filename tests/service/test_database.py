"""The database: the tables of the code, migrations, transactions, both kinds alike."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import JSON, Column, inspect, text
from tests.service.conftest import Start

from evofeed.base.errors import ServiceError
from evofeed.service import create_app
from evofeed.service.database.database import Database, newest_tables
from evofeed.service.database.tables import Base, SecretRow
from evofeed.service.problems import Problem
from evofeed.service.snapshots.catalog import Catalog

pytestmark = pytest.mark.system


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path) -> str:
    """The URL of an up-to-date, empty database of each kind."""
    if request.param == "postgres":
        new_url: Callable[[], str] = request.getfixturevalue("postgres")
        return new_url()
    url = f"sqlite:///{tmp_path / 'x.sqlite3'}"
    with Database(url) as database:
        database.upgrade()
    return url


@pytest.fixture
def database(url):
    with Database(url) as made:
        yield made


def test_migrations_make_exactly_the_tables_of_the_code(database: Database) -> None:
    with database.engine.connect() as connection:
        ours = set(Base.metadata.tables) | {"alembic_version"}
        context = MigrationContext.configure(
            connection,
            opts={
                "compare_type": True,
                "include_name": lambda name, kind, _: kind != "table" or name in ours,
            },
        )
        assert compare_metadata(context, Base.metadata) == []
        assert context.get_current_revision() == newest_tables()


def test_what_the_release_before_held_outlives_the_upgrade(database: Database) -> None:
    """Rows in every table stay as they were, but for the tables and columns that are gone."""
    tables = Base.metadata.sorted_tables
    with database.engine.begin() as connection:
        for table in tables:
            for number in range(1, 4):
                values = {column.name: _value(column, number) for column in table.c}
                connection.execute(table.insert(), values)
        before = Path(__file__).with_name("data") / "before_0007.sql"
        for line in before.read_text().split(";"):
            connection.execute(text(line))
    assert not database.is_current()
    database.upgrade()
    assert database.is_current()
    with database.engine.connect() as connection:
        for table in tables:
            wanted = [{c.name: _value(c, number) for c in table.c} for number in range(1, 4)]
            if table.name == "jobs":  # deaths are counted anew, a log is that of the last run
                for row in wanted:
                    row |= {"deaths": 0, "furthest": 0, "log": f"log {row['attempts']}"}
            found = connection.execute(table.select().order_by(table.c[0])).mappings()
            assert [dict(row) for row in found] == wanted, table.name
        assert not {*GONE, "job_attempts"} & set(inspect(connection).get_table_names())
        assert "max_jobs" not in {c["name"] for c in inspect(connection).get_columns("tokens")}


GONE = "webhooks", "uploads", "runs", "sessions", "ref_intents"


def _value(column: Column[Any], number: int) -> Any:
    """Something for a column: the same number everywhere, so that rows refer to each other."""
    if isinstance(column.type, JSON):
        return {"n": number}
    kind = column.type.python_type
    return str(number).encode() if kind is bytes else kind(number)


def test_upgrading_twice_or_from_two_places_changes_nothing(database: Database, url) -> None:
    def upgrade(_: int) -> None:
        with Database(url) as mine:
            mine.upgrade()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(upgrade, range(3)))
    assert database.is_current()


def test_a_write_that_fails_leaves_nothing(database: Database) -> None:
    with pytest.raises(RuntimeError), database.write() as session:
        session.add(SecretRow(name="half", value=b"x" * 32))
        session.flush()
        raise RuntimeError("in the middle")
    with database.read() as session:
        assert session.get(SecretRow, "half") is None


def test_of_racing_registrations_one_name_comes_out(database: Database) -> None:
    refused: list[Problem] = []

    def register(number: int) -> None:
        try:
            Catalog(database).register("same", f"/place/{number % 2}")
        except Problem as problem:
            refused.append(problem)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(register, range(6)))
    assert [row.name for row in Catalog(database).datasets()] == ["same"]
    assert {problem.code for problem in refused} == {"name_taken"} and len(refused) >= 3


def test_a_postgres_that_is_behind_is_not_ready_and_a_start_names_the_command_that_helps(
    start_any: Start,
) -> None:
    client, database = start_any(), start_any.database
    assert client.get("/readyz").status_code == 200
    with database.write() as session:
        newest = session.scalar(text("SELECT version_num FROM alembic_version"))
        session.execute(text("UPDATE alembic_version SET version_num = 'old'"))
    try:
        behind = client.get("/readyz")
        assert behind.status_code == 503 and behind.headers["retry-after"] == "2"
        assert client.get("/healthz").status_code == 200
        if not database.is_sqlite:
            with pytest.raises(ServiceError, match="evofeed serve --migrate"):
                create_app(start_any.settings[-1])
    finally:
        with database.write() as session:
            session.execute(text("UPDATE alembic_version SET version_num = :it"), {"it": newest})


def test_metrics_count_by_endpoint_and_never_by_path(start, folder) -> None:
    client = start(datasets={"demo": str(folder[0])})
    for path in ("/healthz", "/v1/datasets/demo/refs/main", "/no/such/path/1", "/no/such/path/2"):
        client.get(path)
    lines = client.get("/metrics").text.splitlines()
    assert 'evofeed_requests_total{endpoint="get_ref",method="GET",status="200"} 1.0' in lines
    assert 'evofeed_requests_total{endpoint="none",method="GET",status="404"} 2.0' in lines
    assert "evofeed_datasets 1.0" in lines and 'evofeed_jobs{state="queued"} 0.0' in lines
    assert not any("such" in line or "demo" in line for line in lines)
