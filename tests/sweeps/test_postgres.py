"""A sweep's workers on a real PostgreSQL, which is restarted and goes away, too; killed at random with their
runs (`benchmarks/sweep_soak.py` has the long one).
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.place import grid
from support.postgres import programs
from support.quick import ROOT
from support.wandb_server.clients import wait_until

from ampcompare.errors import UserError
from ampcompare.sweeps import storage
from ampcompare.sweeps.queue import Queue
from ampcompare.sweeps.storage import Away

WORKERS = 8


def refusal(url: str) -> str:
    with pytest.raises(UserError) as caught:
        Queue(grid(1), url, "s")
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgres+psycopg"])
def test_a_url_opens_with_the_driver_of_the_extra(postgres, scheme):
    assert Queue(grid(2), postgres.database().replace("postgresql", scheme, 1), "s").claim()


def test_a_missing_driver_is_named_with_the_words_to_install_it(postgres, monkeypatch):
    for name in ("psycopg", "psycopg2"):
        monkeypatch.setitem(sys.modules, name, None)
    said = refusal(postgres.url("postgres", "me:secret"))
    assert said.endswith("(its driver psycopg is not installed: pip install 'ampcompare[postgresql]')")
    assert "secret" not in said
    said = refusal(postgres.url("postgres", scheme="postgresql+psycopg2"))
    assert said.endswith("(its driver psycopg2 is not installed: pip install psycopg2)")


@pytest.mark.slow
def test_a_server_that_takes_nobody_is_one_line_without_the_password(postgres):
    postgres.execute("CREATE ROLE locked LOGIN PASSWORD 'right'")
    postgres.execute("CREATE ROLE plain LOGIN")
    wrong = refusal(postgres.url("postgres", "locked:wro/ng%40x"))
    assert "(password authentication failed; more is told where the URL has no password" in wrong
    assert "wro/ng" not in wrong
    assert 'database "nothere" does not exist' in refusal(postgres.url("nothere"))
    assert "Connection refused" in refusal("postgresql://me:secret@127.0.0.1:1/db")
    rights = refusal(postgres.url("postgres", "plain"))
    assert "permission denied for schema public" in rights


def test_who_wants_a_run_while_another_takes_it_waits_and_gets_the_next(postgres):
    one, other = (Queue(grid(2), url, "s") for url in [postgres.database()] * 2)
    for row in [one.claim(), one.claim()]:
        one.end(row, "interrupted")
    with one.database.engine.begin() as connection, ThreadPoolExecutor(1) as pool:
        connection.exec_driver_sql("SELECT name FROM ampcompare_sweeps FOR UPDATE")
        connection.exec_driver_sql("UPDATE ampcompare_runs SET state = 'running' WHERE place = 0")
        taken = pool.submit(other.claim)
        asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        wait_until(lambda: postgres.execute(asked) == [(1,)])
        connection.commit()
        assert taken.result().place == 1


def test_several_that_begin_a_sweep_at_once_take_each_of_its_runs_once(postgres):
    url = postgres.database()

    def take(number: int) -> list[int]:
        queue, places = Queue(grid(40), url, "s"), []
        while row := queue.claim():
            places.append(row.place)
            assert queue.end(row, "finished", float(row.place))
        return places

    with ThreadPoolExecutor(WORKERS) as pool:
        assert sorted(place for places in pool.map(take, range(WORKERS)) for place in places) == [*range(40)]


def test_a_step_waits_for_a_restarted_server_and_says_so_once(postgres, monkeypatch):
    monkeypatch.setattr(storage, "PAUSE_SECONDS", 0.05)
    queue, said = Queue(grid(3), postgres.database(), "s"), []
    queue.database.say = said.append
    row = queue.claim()
    postgres.stop("immediate")
    with pytest.raises(Away):
        queue.beat([row])
    with ThreadPoolExecutor(1) as pool:
        is_told = pool.submit(queue.end, row, "finished")
        wait_until(is_told.running)
        postgres.start()
        assert is_told.result()
    assert queue.progress().done == 1
    assert queue.claim() is not None
    away, back = said
    assert away.startswith("the database does not answer (")
    assert back.startswith("the database answers again, after ")


@pytest.mark.slow
def test_a_worker_gives_up_after_a_long_time_and_what_ended_is_not_run_again(place, postgres):
    place.file(parameters={"x": {"values": [1, 2]}, "hold": {"value": "all"}})
    place.hold()
    place.before = "from ampcompare.sweeps import storage; storage.PATIENCE_SECONDS = 1"
    url = postgres.database()
    process = place.start("--storage", url, "--grace", "10")
    place.wait_for("began", 1)
    postgres.stop()
    place.release()
    said, _ = process.communicate()
    postgres.start()
    assert process.returncode == 2
    assert "runs go on; waiting for it, 0:01 at most" in said
    assert "does not answer (" in said.splitlines()[-1]
    assert "Traceback" not in said
    code, said = place.sweep("--storage", url, "--grace", "10")
    assert code == 0, said
    assert len(place.events("began")) == len(place.events("ended")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_sweep_whose_workers_and_runs_are_killed_has_every_point_once(database, tmp_path):
    if database == "postgres" and programs() is None:
        pytest.skip("no PostgreSQL: neither initdb on PATH nor Debian's package postgresql is there")
    words = ["--points", "30", "--workers", "3", "--minutes", "0.25", "--folder", str(tmp_path)]
    words += ["--postgres"] if database == "postgres" else []
    command = [sys.executable, "benchmarks/sweep_soak.py", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every point once in the records" in done.stdout
    assert (tmp_path / "strikes.jsonl").read_text().count("\n") > 0
