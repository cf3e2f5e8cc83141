"""`--missing` and `--fill` in this process: job arrays, databases that are away or of others, the hint."""

from __future__ import annotations

import os
import shlex
import signal
import threading

import pytest

from ampcompare.cli import main
from ampcompare.sweeps import run
from ampcompare.sweeps.cluster.array import MARK, Array
from ampcompare.sweeps.file import read_sweep
from ampcompare.sweeps.prepare import prepare
from ampcompare.sweeps.process import note_end
from ampcompare.sweeps.queue import Queue
from ampcompare.sweeps.storage import sqlite_url
from ampcompare.sweeps.table import Row

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


def array(place, monkeypatch, **content) -> tuple[Array, list[Row]]:
    """An array of the sweep as it was submitted, none of whose runs has ended, and its runs."""
    file = place.file(**(content or XS))
    monkeypatch.chdir(place.folder)
    ready = prepare(str(file), [f"output_dir={place.out}"])
    made = Array(place.out)
    made.make()
    sweep, kept = made.agreed(ready)
    made.write("sweep", kept)
    runs = made.rows(sweep, kept, None, {})
    made.write(f"{MARK}1", {"runs": [run.run_id for run in runs]})
    return made, runs


def queued(place, monkeypatch, *lines: str) -> None:
    """What squeue answers: jobs of the submission by their tasks."""
    (mark,) = (path.stem for path in (place.out / "cluster").glob("ampcompare-*.json"))
    squeue = place.folder / "bin" / "squeue"
    squeue.parent.mkdir(exist_ok=True)
    squeue.write_text(
        "#!/bin/sh\necho 'JOBID|NAME'\n" + "".join(f"echo ' {n}|sweep-{mark}'\n" for n in lines)
    )
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}{os.pathsep}{os.environ['PATH']}")


def ran(place) -> list[str]:
    return sorted(event["given"]["x"] for event in place.events("ended"))


@pytest.mark.slow
def test_what_waits_or_runs_as_a_job_is_left_alone_until_it_is_gone(place, said, monkeypatch):
    _, runs = array(place, monkeypatch)
    queued(place, monkeypatch, "101_0")
    code, told = said("--missing")
    assert (code, "3 points: 1 running, 2 missing" in told) == (3, True), told
    assert "in the queue as job 101_0" in told
    code, told = said("--fill")
    assert (code, "1 point is running: left alone" in told) == (3, True), told
    left = str(runs[0].parameters["x"])
    assert ran(place) == sorted({"1", "2", "3"} - {left})
    assert said("--fill")[0] == said("--missing")[0] == 3  # nothing is left to do here
    queued(place, monkeypatch)  # cancelled before it began: no trace of it
    assert said("--fill")[0] == 0
    assert ran(place) == ["1", "2", "3"]
    assert said("--missing")[0] == 0


def test_where_the_queue_cannot_be_asked_missing_says_so_and_fill_refuses(place, said, monkeypatch):
    made, runs = array(place, monkeypatch)
    monkeypatch.setenv("PATH", str(place.folder))
    code, told = said("--missing")
    assert (code, "cannot be asked" in told) == (3, True), told
    code, told = said("--fill")
    assert (code, "what runs would be run again" in told) == (2, True), told
    assert not place.events("began")
    (made.folder / "logs").mkdir()
    for one in runs:
        note_end(made.folder, one.run_id, "finished")
    code, told = said("--missing")
    assert (code, "cannot be asked" in told) == (0, False), told


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


@pytest.mark.parametrize("word", ["interrupted", "lost"])
def test_a_run_that_is_queued_again_is_not_missing(place, said, word):
    found = read_sweep(place.file(**XS))
    place.out.mkdir()
    queue = Queue(found, sqlite_url(place.out), "sweep")
    assert queue.end(queue.claim(), word)
    assert "3 points: 1 stopped, 2 missing" in said("--missing")[1]


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
