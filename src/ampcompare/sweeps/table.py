"""The tables of sweeps in a database: a row is a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, Connection

from ampcompare.errors import UserError
from ampcompare.sweeps.storage import Address, Database, shown, sqlite_path

FORMAT = 3
QUEUED, RUNNING = "queued", "running"


@dataclass(frozen=True)
class Row:
    """A run by its place in the sweep, and the columns of its table.

    `plan` is what of the sweep's plan is its own: place, block, arm; `drawn` what a sampler was asked and
    said, for its next proposals; `bands` the metric at those that early termination has judged it by. With
    `starts` above 1 it may find what an earlier start of the run left.
    """

    place: int
    run_id: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    drawn: Mapping[str, Any] = field(default_factory=dict)
    state: str = RUNNING
    attempt: int = 1
    starts: int = 1
    owner: str = ""
    beat: int = 0
    value: float | None = None
    bands: Mapping[str, Any] = field(default_factory=dict)


TABLES = sa.MetaData()
SWEEPS = sa.Table(
    "ampcompare_sweeps",
    TABLES,
    Column("name", sa.String(200), primary_key=True),
    Column("definition", sa.JSON, nullable=False),  # `format`, `sweep` as it began, `groups` of seeds
)
TYPES: dict[Any, Any] = {
    int: sa.BigInteger,
    str: sa.String(200),
    float | None: sa.Float(53),
    Mapping[str, Any]: sa.JSON,
}
RUNS = sa.Table(
    "ampcompare_runs",
    TABLES,
    Column("sweep", sa.String(200), primary_key=True),
    Column("place", sa.BigInteger, primary_key=True, autoincrement=False),
    *(Column(f.name, TYPES[f.type], nullable=f.name == "value") for f in fields(Row)[1:]),
    sa.Index("ampcompare_runs_by_state", "sweep", "state", "place"),
)
R = RUNS.c


def rows_of(connection: Connection, *conditions: Any) -> list[Row]:
    """The rows that meet these conditions, by their places."""
    columns = [R[f.name] for f in fields(Row)]
    found = connection.execute(sa.select(*columns).where(*conditions).order_by(R.place))
    return [Row(**row) for row in found.mappings()]


def find_definition(connection: Connection, name: str, url: Address) -> dict[str, Any] | None:
    """What is written of a sweep in a database that may be any. Raises UserError for what an earlier version
    wrote, one that queued by Optuna included.
    """
    there, found = sa.inspect(connection), None
    if there.has_table(SWEEPS.name):
        found = connection.execute(sa.select(SWEEPS.c.definition).where(SWEEPS.c.name == name)).scalar()
    if found and found["format"] == FORMAT:
        return dict(found)
    former = sa.text("SELECT count(*) FROM studies WHERE study_name = :name")
    if found or (there.has_table("studies") and connection.execute(former, {"name": name}).scalar()):
        what = "of an earlier version of AMP Compare and cannot be gone on with"
        todo = "finish it with that version, or set output_dir=... (--name)"
        raise UserError(f"{shown(url)}: its sweep {name!r} is {what}; {todo}")
    return None


def read_sweep_of(url: Address, name: str) -> tuple[dict[str, Any] | None, list[Row]]:
    """What a database, if there is one, has of a sweep: what is written of it, and its runs. Raises UserError
    where it cannot be read.
    """
    path = sqlite_path(url)
    if path is not None and not path.is_file():  # it would be made
        return None, []

    def read(connection: Connection) -> tuple[dict[str, Any] | None, list[Row]]:
        found = find_definition(connection, name, url)
        return found, rows_of(connection, R.sweep == name) if found else []

    database = Database(url)
    try:
        return database.once(read)
    finally:
        database.engine.dispose()
