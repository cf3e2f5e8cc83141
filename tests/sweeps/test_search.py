"""The state of a sweep in its database: who gets which run, what happens to it, what it costs."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from types import FrameType

import pytest
from support.place import grid

from ampcompare.errors import UserError
from ampcompare.sweeps.order import orders
from ampcompare.sweeps.search import Search
from ampcompare.sweeps.storage import check_storage, shown, sqlite_url, why


def be_silent(folder: Path, seconds: int) -> None:
    """All the signs of life so far were that much earlier."""
    with sqlite3.connect(folder / "sweep.db") as database:
        database.execute(f"UPDATE trial_heartbeats SET heartbeat = datetime(heartbeat, '-{seconds} seconds')")
    database.close()


@pytest.fixture
def search(tmp_path):
    return Search(grid(3), sqlite_url(tmp_path), "s")


ORDER = next(orders("s", 3))  # of the three points of `search`


def test_points_come_in_their_order_and_then_nothing(search):
    assert [search.next().parameters["x"] for _ in range(3)] == [*ORDER]
    assert search.next() is None


@pytest.mark.slow
def test_workers_at_once_get_every_point_once(tmp_path):
    searches = [Search(grid(40), sqlite_url(tmp_path), "s") for _ in range(4)]

    def work(search):
        mine = []
        while attempt := search.next():
            mine.append(attempt.parameters["x"])
            search.finish(attempt, "finished", None)
        return mine

    with ThreadPoolExecutor(4) as pool:
        found = [x for mine in pool.map(work, searches) for x in mine]
    assert sorted(found) == list(range(40))
    assert len(searches[0].rows()) == 40


def test_interrupted_run_comes_again_as_often_as_it_is_interrupted(search):
    first = search.next()
    for _ in range(3):
        search.give_up(first)
        again = search.next()
        assert (again.run_id, again.parameters, again.attempt) == (first.run_id, first.parameters, 1)
        first = again
    assert [search.next().parameters["x"] for _ in range(2)] == [*ORDER[1:]]
    assert search.next() is None


def test_silent_worker_loses_its_run_which_is_tried_once_more(tmp_path):
    search = Search(grid(1), sqlite_url(tmp_path), "s", grace_seconds=3600)
    first = search.next()
    assert search.next() is None
    be_silent(tmp_path, 4000)
    second = search.next()
    assert (second.run_id, second.attempt) == (first.run_id, 2)
    assert not search.alive(first)  # it was taken over
    assert not search.finish(first, "finished", None)
    be_silent(tmp_path, 4000)
    assert search.next() is None
    (row,) = search.rows()
    assert row.state == "lost"


def test_run_of_a_worker_that_died_before_its_first_sign_of_life_is_not_lost(tmp_path):
    search = Search(grid(2), sqlite_url(tmp_path), "s", grace_seconds=3600)
    search.study.ask()  # and killed
    first, second = next(orders("s", 2))
    assert search.next().parameters["x"] == second
    assert search.next() is None
    be_silent(tmp_path, 4000)
    found = search.next()
    assert (found.parameters["x"], found.attempt) == (first, 1)


def test_unknown_method_is_refused_and_leaves_no_database(tmp_path):
    with pytest.raises(UserError, match=r"method='genetic': expected one of grid, random, bayes$"):
        Search(grid(1, method="genetic"), sqlite_url(tmp_path), "s")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["what?", "a{b}", "a%20b #x", "großes ☃", "a;b&c=d"])
def test_database_lies_in_its_folder_whatever_its_name(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    Search(grid(1), sqlite_url(folder), "s")
    assert (folder / "sweep.db").is_file()
    assert len(list(tmp_path.iterdir())) == 1


def test_password_of_a_database_is_not_shown():
    with pytest.raises(UserError) as caught:
        Search(grid(1), "nodialect://me:secret@host/db", "s")
    assert "secret" not in str(caught.value)
    assert "nodialect://me:***@host/db" in str(caught.value)


def test_password_is_shown_nowhere_wherever_it_stands_in_a_url(subtests: pytest.Subtests):
    for url, secret in [
        ("postgresql://me:se%21cret@host:5432/db", "se!cret"),
        ("postgres+psycopg://me:secret@host/db?x=a@b", "secret"),
        ("postgresql://me:secret@ret@host/db", "ret@host"),  # an @ that was not quoted: SQLAlchemy's host
        ("postgresql://me:pa/secret@host/db", "pa/secret"),
        ("postgresql://host/db?user=me&password=secret", "secret"),
        ("postgresql://me@host/db?sslpassword=secret&x=1", "secret"),
        ("postgresql://me:secret/db", "secret"),  # its @ was forgotten
        ("nodialect://me:secret%40x@host/db", "secret@x"),
        ("postgresql://me@corp:secret@host/db", "secret"),
        ("host=h password=secret", "secret"),
        ("postgresql:/me:secret@host/db", "secret"),
        ("me:secret@host/db", "secret"),
        ("postgresql://host/db?PASSWORD=secret", "secret"),
        ("mysql+pymysql://host/db?x=1&passwd=secret", "secret"),
        ("mssql+pyodbc://host/db?PWD=secret", "secret"),
        ("mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3Dsecret%3B", "secret"),
    ]:
        with subtests.test(url=url, secret=secret):
            said = shown(url) + why(ValueError(f"nobody is at {secret}, is it?"), url)
            assert "cret" not in said
            assert "ret@" not in said
            assert "***" in said


@pytest.mark.parametrize(
    "url", ["postgresql://me@host:5432/db", "mysql://[::1]:33/db", "sqlite:////a:b/c@d.db"]
)
def test_url_without_password_is_shown_as_it_is(url):
    assert shown(url) == url


def test_a_short_password_is_hidden_where_it_stands_alone_and_spoils_no_words():
    url = "postgresql://me:p@host/db"
    said = why(ValueError(f'port 1 failed: no "p" at {url}'), url)
    assert said == 'port 1 failed: no "***" at postgresql://me:***@host/db'


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"])
def test_a_database_in_memory_is_refused(url):
    with pytest.raises(UserError, match="a database in memory is gone with its process"):
        check_storage(url)


def test_sweep_that_runs_something_else_is_refused(tmp_path):
    Search(grid(2), sqlite_url(tmp_path), "s", words=["epochs=1"])
    Search(grid(2), sqlite_url(tmp_path), "s", words=["epochs=1"])
    with pytest.raises(UserError, match="differs in words of the command line"):
        Search(grid(2), sqlite_url(tmp_path), "s", words=["epochs=100"])
    with pytest.raises(UserError, match="differs in parameters"):
        Search(grid(3), sqlite_url(tmp_path), "s", words=["epochs=1"])


def test_sign_of_life_keeps_a_run(tmp_path):
    search = Search(grid(1), sqlite_url(tmp_path), "s", grace_seconds=3600)
    first = search.next()
    for _ in range(3):
        be_silent(tmp_path, 1500)
        search.alive(first)
        assert search.next() is None
    assert search.finish(first, "finished", None)


def test_failed_run_is_not_repeated(search):
    for _ in range(3):
        search.finish(search.next(), "failed", None)
    assert search.next() is None
    assert [row.state for row in search.rows()] == ["failed"] * 3


@pytest.mark.slow
def test_work_for_a_run_does_not_grow_with_the_runs_before(tmp_path):
    search = Search(grid(80), sqlite_url(tmp_path), "s")
    calls = [calls_of(lambda: search.finish(search.next(), "finished", None)) for _ in range(80)]
    assert median(calls[-20:]) < 2 * median(calls[5:25])


def calls_of(act: Callable[[], object]) -> int:
    """How many functions an action calls: its work, on any machine and however busy that is."""
    count = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count
