"""Runs migrations on the connection that `evofeed.service.database.database` hands over."""

from alembic import context

from evofeed.service.database.tables import Base

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    render_as_batch=connection.dialect.name == "sqlite",  # SQLite cannot ALTER much
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
