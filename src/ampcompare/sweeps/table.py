"""The tables of sweeps in a database, and what is read of them: the definition of a sweep, and its rows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    inspect,
    select,
    text,
)

from ampcompare.errors import UserError
from ampcompare.sweeps.definition import Added
from ampcompare.sweeps.row import RUN, Row
from ampcompare.sweeps.storage import shown

FORMAT = 1
QUEUED = "queued"

TABLES = MetaData()
SWEEPS = Table(
    "ampcompare_sweeps",
    TABLES,
    Column("name", String(200), primary_key=True),
    Column("definition", Text, nullable=False),  # JSON: `format`, `sweep` as it began, `groups` of seeds
    Column("revision", Integer, nullable=False),
)
RUNS = Table(
    "ampcompare_runs",
    TABLES,
    Column("sweep", String(200), primary_key=True),
    Column("place", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(8), nullable=False),
    Column("run_id", String(16), nullable=False),
    Column("parameters", Text, nullable=False),
    Column("plan", Text, nullable=False),
    Column("drawn", Text, nullable=False),  # what a sampler was asked and said, for its next proposals
    Column("state", String(16), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("starts", Integer, nullable=False),
    Column("owner", String(16), nullable=False),
    Column("beat", Integer, nullable=False),
    Column("value", Float(53)),
    Column("bands", Text, nullable=False),  # the metric at those that early termination has judged it by
    Index("ampcompare_runs_by_state", "sweep", "state", "place"),
)
R = RUNS.c
JSON = ("parameters", "plan", "drawn", "bands")


def rows_of(connection: Connection, name: str, *conditions: Any) -> list[Row]:
    """The runs of a sweep that meet these conditions, by their places."""
    query = select(RUNS).where(R.sweep == name, R.kind == RUN, *conditions).order_by(R.place)
    return [row_of(found) for found in connection.execute(query).mappings()]


def read_definition(connection: Connection, name: str) -> tuple[dict[str, Any], int] | None:
    """What is written of a sweep, and at which revision; None where there is none of this name.

    Raises UserError for what another version wrote.
    """
    query = select(SWEEPS.c.definition, SWEEPS.c.revision).where(SWEEPS.c.name == name)
    if (found := connection.execute(query).first()) is None:
        return None
    written = json.loads(found.definition)
    if written["format"] != FORMAT:
        raise UserError(f"sweep {name!r}: {_of_another_version('of another format')}")
    return written, found.revision


def groups_of(written: Mapping[str, Any]) -> list[Added]:
    """Every group of seeds that was added, in order."""
    return [Added(tuple(seeds), look, tuple(said)) for seeds, look, said in written["groups"]]


def refuse_former(connection: Connection, name: str, url: str) -> None:
    """Raise UserError for a sweep of this name that an earlier version began, which queued by Optuna."""
    if not inspect(connection).has_table("studies"):
        return
    query = text("SELECT count(*) FROM studies WHERE study_name = :name")
    if connection.execute(query, {"name": name}).scalar():
        what = _of_another_version("of an earlier version of AMP Compare")
        raise UserError(f"{shown(url)}: its sweep {name!r} is {what}")


def _of_another_version(which: str) -> str:
    return f"{which} and cannot be gone on with; finish it with that version, or set output_dir=... (--name)"


def row_of(found: Any) -> Row:
    names = (name.name for name in dataclasses.fields(Row))
    return Row(**{name: json.loads(found[name]) if name in JSON else found[name] for name in names})
