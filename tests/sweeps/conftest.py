"""A folder of a sweep, and a database that workers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.place import Place
from support.postgres import Postgres, started


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server of these tests."""
    server = started()
    yield server
    server.close()
