"""`--missing` and `--fill` in this process: job arrays, databases that are away or of others, the hint."""

from __future__ import annotations

import shlex
import signal
import threading

import pytest
from rich.console import Console

from ampcompare.cli import main
from ampcompare.sweeps import run
from ampcompare.sweeps.cluster import noted
from ampcompare.sweeps.cluster.whole import WholeArray
from ampcompare.sweeps.file import read_sweep
from ampcompare.sweeps.prepare import prepare
from ampcompare.sweeps.queue import Queue
from ampcompare.sweeps.storage import sqlite_url

XS = {"parameters": {"x": {"values": [1, 2, 3]}}}


@pytest.fixture
def said(place, monkeypatch, capsys):
    """The command: its exit code and what it says."""
    monkeypatch.chdir(place.folder)
    monkeypatch.setenv("COLUMNS", "1000")

    def ask(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["sweep", "sweep.yaml", *words, f"output_dir={place.out}"])
        told = capsys.readouterr()
        return ended.value.code or 0, told.out + told.err

    return ask


def array(place, monkeypatch, **content) -> WholeArray:
    """An array of the sweep, submitted as job 101, none of whose runs has ended."""
    file = place.file(**(content or XS))
    monkeypatch.chdir(place.folder)
    words = [f"output_dir={place.out}"]
    made = WholeArray("sweep.yaml", prepare(str(file), words), words, Console(quiet=True))
    made.agree()
    made.book.keep_submitted("101", [run.run_id for run in made.runs()])
    return made


def queued(monkeypatch, names: dict[str, str]) -> None:
    monkeypatch.setattr(noted, "tasks_in_queue", lambda book: names)


def ran(place) -> list[str]:
    return sorted(event["given"]["x"] for event in place.events("ended"))


@pytest.mark.slow
def test_what_waits_or_runs_as_a_job_is_left_alone_until_it_is_gone(place, said, monkeypatch):
    made = array(place, monkeypatch)
    first = made.runs()[0]
    queued(monkeypatch, {first.run_id: "101_0"})
    code, told = said("--missing")
    assert (code, "3 points: 1 running, 2 missing" in told) == (3, True), told
    assert "in the queue as job 101_0" in told
    code, told = said("--fill")
    assert (code, "1 point is running: left alone" in told) == (3, True), told
    left = str(first.parameters["x"])
    assert ran(place) == sorted({"1", "2", "3"} - {left})
    assert said("--fill")[0] == said("--missing")[0] == 3  # nothing is left to do here
    queued(monkeypatch, {})  # cancelled before it began: no trace of it
    assert said("--fill")[0] == 0
    assert ran(place) == ["1", "2", "3"]
    assert said("--missing")[0] == 0


def test_what_a_job_without_a_queue_sees_through_is_running(place, said, monkeypatch):
    """One that squeue has lost."""
    made = array(place, monkeypatch)
    queued(monkeypatch, {})
    with made.book.held(made.runs()[0].run_id):
        code, told = said("--missing")
        assert (code, "3 points: 1 running, 2 missing" in told) == (3, True), told
    assert "3 points: 3 missing" in said("--missing")[1]


def test_where_the_queue_cannot_be_asked_missing_says_so_and_fill_refuses(place, said, monkeypatch):
    made = array(place, monkeypatch)
    monkeypatch.setenv("PATH", str(place.folder))
    code, told = said("--missing")
    assert (code, "cannot be asked" in told) == (3, True), told
    code, told = said("--fill")
    assert (code, "what runs would be run again" in told) == (2, True), told
    assert not place.events("began")
    for planned in made.runs():
        made.book.note(planned.run_id, exit_code=0)
    code, told = said("--missing")
    assert (code, "cannot be asked" in told) == (0, False), told


def test_an_array_of_another_file_is_named(place, said, monkeypatch):
    array(place, monkeypatch)
    place.file(parameters={"x": {"values": [1, 2, 4]}})
    for asked in ("--missing", "--fill"):
        code, told = said(asked)
        assert (code, "differs in parameters.x; give it the file" in told) == (2, True), told


def test_a_plain_sweep_in_the_folder_of_an_array_runs_nothing(place, said, monkeypatch):
    array(place, monkeypatch)
    code, told = said()
    why = "is a job array; see --missing, go on with --cluster, or here with --fill"
    assert (code, why in told) == (2, True), told
    assert not place.events("began")


def test_the_hint_names_the_database_and_all_else_that_was_asked_with(place, said):
    place.file(**XS)
    url = f"sqlite:///{place.folder}/other.db"
    options = ["--storage", url, "--name=mine", "--grace=70", "--control=bookends", "fail=9"]
    hint = said("--missing", *options)[1].rpartition("to fill them: ")[2].splitlines()[0]
    words = {"--fill", f"--storage={url}", "--name=mine", "--grace=70.0", "--control=bookends", "fail=9"}
    assert {*shlex.split(hint)} >= words


@pytest.mark.parametrize(("word", "state"), [("interrupted", "stopped"), ("lost", "crashed")])
def test_a_run_that_is_queued_again_is_not_missing(place, said, word, state):
    found = read_sweep(place.file(**XS))
    place.out.mkdir()
    queue = Queue(found, sqlite_url(place.out), "sweep")
    assert queue.end(queue.claim(), word)
    assert f"3 points: 1 {state}, 2 missing" in said("--missing")[1]


def test_draws_that_coincide_make_a_search_whole_and_failed_ones_are_filled(place, said):
    one = {"method": "random", "run_cap": 2, "parameters": {"x": {"values": [1]}, "fail": {"value": 1}}}
    place.file(**one)
    said()
    code, told = said("--missing")
    assert (code, "2 points: 2 failed" in told) == (3, True), told
    program = place.folder / "program.py"
    program.write_text(program.read_text().replace("sys.exit(3)", "pass"))
    code, told = said("--fill")
    assert (code, len(place.events("began"))) == (0, 4), told
    code, told = said("--missing")
    assert (code, "2 points: 2 finished; whole" in told) == (0, True), told


def test_of_further_signals_only_ctrl_c_means_at_once(monkeypatch):
    """Slurm warns with one signal and ends with another; the runs need the time in between."""
    monkeypatch.setattr(run, "SAME_REQUEST_SECONDS", 0)
    stop, kill = threading.Event(), threading.Event()
    with run.stopped_by_signals(stop, kill, lambda line: None) as received:
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM):
            signal.raise_signal(number)
        assert stop.is_set()
        assert not kill.is_set()
        signal.raise_signal(signal.SIGINT)
        assert kill.is_set()
    assert received[0] == signal.SIGUSR1
