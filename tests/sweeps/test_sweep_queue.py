"""The queue of a sweep: who gets which run, what happens to it, what it costs; its database's URL."""

import sqlite3
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from support.place import grid

from ampcompare.errors import UserError
from ampcompare.sweeps import queue as module
from ampcompare.sweeps.definition import Added
from ampcompare.sweeps.distributions import Parameter
from ampcompare.sweeps.queue import ATTEMPTS, ELSEWHERE, Queue
from ampcompare.sweeps.randomized_blocks import orders
from ampcompare.sweeps.search import falls_behind
from ampcompare.sweeps.storage import Away, Database, shown, sqlite_url, why
from ampcompare.sweeps.table import Row

GRACE = 60.0


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue(grid(3), sqlite_url(tmp_path), "s")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock by which silence is measured: `now` is set by the test."""
    made = SimpleNamespace(now=0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def watch(queue: Queue, clock: SimpleNamespace, seconds: float, *others: tuple[Queue, object]) -> None:
    """Let time pass, `queue` and the others (with the rows that they have) giving signs of life."""
    until = clock.now + seconds
    while clock.now < until:
        clock.now += 2.0
        for other, row in others:
            other.beat([row])
        queue.beat()


ORDER = next(orders("s", 3))  # of the three points of `queue`


def test_interrupted_run_comes_again_as_often_as_it_is_interrupted(queue):
    first = queue.claim()
    for _ in range(3):
        queue.end(first, "interrupted")
        again = queue.claim()
        assert (again.run_id, again.parameters, again.attempt) == (first.run_id, first.parameters, 1)
        assert again.starts > 1
        first = again
    assert [queue.claim().parameters["x"] for _ in range(2)] == [*ORDER[1:]]
    assert queue.claim() is None


def test_silent_worker_loses_its_run_which_is_tried_once_more_and_then_lost(tmp_path, clock):
    one, queue = (Queue(grid(1), sqlite_url(tmp_path), "s", GRACE) for _ in range(2))
    first = one.claim()
    watch(queue, clock, 3 * GRACE, (one, first))
    assert queue.claim() is None  # its signs of life keep it
    watch(queue, clock, GRACE)
    assert queue.claim() is None
    watch(queue, clock, 4)
    second = queue.claim()
    assert (second.run_id, second.attempt) == (first.run_id, ATTEMPTS)
    assert one.beat([first]).lost == {first.owner}
    assert not one.end(first, "finished")
    watch(one, clock, GRACE + 4)
    assert queue.claim() is None
    assert [row.state for row in queue.rows()] == ["lost"]
    assert queue.progress().done == 1


@pytest.mark.parametrize("why", ["stopped, with all others on its machine", "cut off"])
def test_who_did_not_see_for_a_while_knows_of_no_silence(tmp_path, clock, monkeypatch, why):
    other, queue = (Queue(grid(1), sqlite_url(tmp_path), "s", GRACE) for _ in range(2))
    row = other.claim()
    watch(queue, clock, GRACE - 4)
    if why == "cut off":
        with monkeypatch.context() as patched:
            patched.setattr(queue.database, "once", Mock(side_effect=Away("gone")))
            with pytest.raises(Away):
                queue.beat()
    else:
        clock.now += 10 * GRACE
    watch(queue, clock, GRACE - 4)
    assert other.beat([row]).lost == frozenset()


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every transaction is written, and the first time nobody hears of it."""
    once, lost = Database.once, []

    def breaking(self, act):
        result = once(self, act)
        if len(lost) % 2 == 0:
            lost.append(1)
            raise Away("the connection broke")
        lost.append(0)
        return result

    monkeypatch.setattr(Database, "once", breaking)
    monkeypatch.setattr("ampcompare.sweeps.storage.PAUSE_SECONDS", 0)
    return lost


def test_a_commit_whose_answer_was_lost_is_found_again(queue, breaks):
    for state in ("interrupted", "lost", "failed"):  # of one run: queued again, twice
        row = queue.claim()
        assert row.parameters["x"] == ORDER[0]
        assert queue.end(row, state)
    assert queue.add(Added((), look=3))
    assert len(queue.read_added()) == 1
    for place in (1, 2):
        row = queue.claim()
        assert row.place == place
        assert queue.end(row, "finished", 1.0)
    assert queue.claim() is None
    assert [(row.state, row.attempt) for row in queue.rows()] == [("failed", 2)] + [("finished", 1)] * 2
    assert sum(breaks) > 10


def test_a_hole_that_two_fill_at_once_is_queued_once_as_a_new_run(queue):
    row = queue.claim()
    queue.end(row, "failed")
    (failed,) = queue.rows()
    assert [queue.requeue([failed]), queue.requeue([failed])] == [1, 0]
    new = queue.claim()
    assert (new.place, new.attempt, new.starts) == (row.place, 1, 1)
    assert new.run_id != row.run_id
    queue.end(new, "failed")
    assert queue.requeue([failed]) == 0  # by who had looked before that


def test_what_two_find_elsewhere_at_once_is_written_down_once(tmp_path):
    one, other = (Queue(grid(3), sqlite_url(tmp_path), "s") for _ in range(2))
    begun = one.claim()
    for queue in (one, other):
        queue.adopt([Row(place, f"run{place}", {"x": place}, state=ELSEWHERE) for place in range(2)])
    assert [(row.place, row.run_id) for row in other.rows()] == [(0, begun.run_id), (1, "run1")]
    assert other.claim().place == 2


def test_a_run_is_judged_once_at_a_band_however_often_it_starts(queue):
    row = queue.claim()
    assert queue.report(row, 3, 0.5) == [0.5]
    queue.end(row, "interrupted")
    again = queue.claim()
    assert again.bands == {"3": 0.5}
    assert queue.report(again, 3, 0.7) == [0.5]
    assert sorted(queue.report(queue.claim(), 3, 0.9)) == [0.5, 0.9]


@pytest.mark.parametrize(
    ("value", "others", "maximize", "expected"),
    [
        (0.5, [], True, False),
        (0.5, [0.6], True, True),
        (0.7, [0.6], True, False),
        (0.5, [0.6, 0.4, 0.3, 0.2, 0.1], True, False),  # the second of six
        (0.5, [0.6, 0.7, 0.3, 0.2, 0.1], True, True),
        (0.5, [0.4, 0.7, 0.8, 0.9, 1.0], False, False),
        (float("inf"), [0.4], False, True),
    ],
)
def test_the_best_third_of_a_band_goes_on(value, others, maximize, expected):
    assert falls_behind(value, [*others, value], 3, maximize=maximize) is expected


def test_what_is_wrong_with_a_draw_is_no_trouble_with_the_database(tmp_path, monkeypatch):
    def broken(self, trial):
        raise ValueError("no such quantile")

    monkeypatch.setattr(Parameter, "at", broken)
    with pytest.raises(ValueError, match="no such quantile"):
        Queue(grid(1, method="random"), sqlite_url(tmp_path), "s").claim()


def test_a_database_of_an_earlier_version_is_refused_in_a_line(tmp_path):
    with sqlite3.connect(tmp_path / "sweep.db") as database:
        database.execute("CREATE TABLE studies (study_id INTEGER PRIMARY KEY, study_name TEXT)")
        database.execute("INSERT INTO studies (study_name) VALUES ('s')")
    database.close()
    with pytest.raises(UserError) as caught:
        Queue(grid(1), sqlite_url(tmp_path), "s")
    assert "of an earlier version of AMP Compare" in str(caught.value)
    assert "set output_dir=..." in str(caught.value)
    assert "\n" not in str(caught.value)
    assert Queue(grid(1), sqlite_url(tmp_path), "another").claim()  # somebody's own studies are no matter
    with sqlite3.connect(tmp_path / "sweep.db") as database:
        database.execute("UPDATE ampcompare_sweeps SET definition = replace(definition, 'format', 'was')")
        database.execute(
            "UPDATE ampcompare_sweeps SET definition = '{\"format\": 1,' || substr(definition, 2)"
        )
    database.close()
    with pytest.raises(UserError, match="of an earlier version of AMP Compare"):
        Queue(grid(1), sqlite_url(tmp_path), "another")


def test_database_lies_in_its_folder_whatever_its_name(tmp_path):
    folder = tmp_path / "what? a{b}%20#x großes ☃ a;b&c=d"
    folder.mkdir()
    Queue(grid(1), sqlite_url(folder), "s")
    assert (folder / "sweep.db").is_file()
    assert shown(sqlite_url(folder)) == str(folder / "sweep.db")
    assert len(list(tmp_path.iterdir())) == 1


def test_password_is_shown_nowhere_wherever_it_stands_in_a_url(subtests: pytest.Subtests):
    for url, secret in [
        ("postgresql://me:se%21cret@host:5432/db", "se!cret"),
        ("postgres+psycopg://me:secret@host/db?x=a@b", "secret"),
        ("postgresql://me:secret@ret@host/db", "ret@host"),  # an @ that was not quoted: SQLAlchemy's host
        ("postgresql://me:pa/secret@host/db", "pa/secret"),
        ("postgresql://me:pa?secret@host/db", "pa?secret"),
        ("postgresql://host/db?user=me&password=secret", "secret"),
        ("postgresql://me@host/db?sslpassword=secret&x=1", "secret"),
        ("postgresql://me:secret/db", "secret"),  # its @ was forgotten
        ("nodialect://me:secret%40x@host/db", "secret@x"),
        ("postgresql://me@corp:secret@host/db", "secret"),
        ("host=h password=secret", "secret"),
        ("postgresql:/me:secret@host/db", "secret"),
        ("me:secret@host/db", "secret"),
        ("mysql+pymysql://host/db?x=1&passwd=secret", "secret"),
        ("mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3Dsecret%3B", "secret"),
    ]:
        with subtests.test(url=url, secret=secret):
            said = shown(url) + why(ValueError(f"nobody is at {secret}, is it?"), url)
            assert "cret" not in said
            assert "ret@" not in said


def test_of_a_database_all_is_told_that_can_be_no_secret():
    assert shown("postgresql://me:secret@host:5432/db?sslmode=require") == "postgresql://host/db"
    assert shown("mysql://me@[::1]:33/db") == "mysql://[::1]/db"
    assert shown("sqlite:////a:b/c@d.db") == "sqlite:////a:b/c@d.db"
    assert why(ValueError("no host"), "postgresql://me@host/db?sslmode=require") == "no host"
    assert why(ValueError("Connection refused at p"), "postgresql://me:p@h/db").startswith(
        "Connection refused; "
    )


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"])
def test_a_database_in_memory_is_refused(url):
    with pytest.raises(UserError, match="a database in memory is gone with its process"):
        Queue(grid(1), url, "s")
