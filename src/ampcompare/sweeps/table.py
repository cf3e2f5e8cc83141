"""The tables of sweeps in a database: a row is a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    inspect,
    select,
    text,
)

from ampcompare.errors import UserError
from ampcompare.sweeps.storage import Database, shown, sqlite_path

FORMAT = 2
QUEUED, RUNNING = "queued", "running"

TABLES = MetaData()
SWEEPS = Table(
    "ampcompare_sweeps",
    TABLES,
    Column("name", String(200), primary_key=True),
    Column("definition", JSON, nullable=False),  # `format`, `sweep` as it began, `groups` of seeds
    Column("revision", Integer, nullable=False),
)
RUNS = Table(
    "ampcompare_runs",
    TABLES,
    Column("sweep", String(200), primary_key=True),
    Column("place", BigInteger, primary_key=True, autoincrement=False),
    Column("run_id", String(16), nullable=False),
    Column("parameters", JSON, nullable=False),
    Column("plan", JSON, nullable=False),
    Column("drawn", JSON, nullable=False),  # what a sampler was asked and said, for its next proposals
    Column("state", String(16), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("starts", Integer, nullable=False),
    Column("owner", String(16), nullable=False),
    Column("beat", Integer, nullable=False),
    Column("value", Float(53)),
    Column("bands", JSON, nullable=False),  # the metric at those that early termination has judged it by
    Index("ampcompare_runs_by_state", "sweep", "state", "place"),
)
R = RUNS.c


@dataclass(frozen=True)
class Row:
    """A run by its place in the sweep. `plan` is what of the sweep's plan is its own: place, block, arm."""

    place: int
    run_id: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    drawn: Mapping[str, Any] = field(default_factory=dict)
    state: str = RUNNING
    attempt: int = 1
    starts: int = 1  # above 1 it may find what an earlier start of the run left
    owner: str = ""
    beat: int = 0
    value: float | None = None
    bands: Mapping[str, float] = field(default_factory=dict)


def rows_of(connection: Connection, *conditions: Any) -> list[Row]:
    """The rows that meet these conditions, by their places."""
    columns = [column for column in R if column.name != "sweep"]
    found = connection.execute(select(*columns).where(*conditions).order_by(R.place))
    return [Row(**row) for row in found.mappings()]


def read_definition(connection: Connection, name: str) -> tuple[dict[str, Any], int] | None:
    """What is written of a sweep, and at which revision; None where there is none of this name."""
    query = select(SWEEPS.c.definition, SWEEPS.c.revision).where(SWEEPS.c.name == name)
    found = connection.execute(query).first()
    return None if found is None else (found.definition, found.revision)


def find_definition(connection: Connection, name: str, url: str) -> dict[str, Any] | None:
    """What is written of a sweep in a database that may be any. Raises UserError for what an earlier version
    wrote, one that queued by Optuna included.
    """
    there, found = inspect(connection), None
    if there.has_table(SWEEPS.name):
        found = read_definition(connection, name)
    if found and found[0]["format"] == FORMAT:
        return found[0]
    former = text("SELECT count(*) FROM studies WHERE study_name = :name")
    if found or (there.has_table("studies") and connection.execute(former, {"name": name}).scalar()):
        what = "of an earlier version of AMP Compare and cannot be gone on with"
        todo = "finish it with that version, or set output_dir=... (--name)"
        raise UserError(f"{shown(url)}: its sweep {name!r} is {what}; {todo}")
    return None


def read_sweep_of(url: str, name: str) -> tuple[dict[str, Any] | None, list[Row]]:
    """What a database, if there is one, has of a sweep: what is written of it, and its runs. Raises UserError
    where it cannot be read.
    """
    path = sqlite_path(url)
    if path is not None and not path.is_file():  # it would be made
        return None, []
    database = Database(url, None)
    try:
        with database.engine.connect() as connection:
            found = find_definition(connection, name, url)
            return found, rows_of(connection, R.sweep == name) if found else []
    finally:
        database.engine.dispose()
