"""`ampcompare sweep FILE --missing` and `--fill`: what was not run is listed, and only that is run."""

import os
import shlex
from collections import Counter

import pytest

from ampcompare.cli import main
from ampcompare.sweeps.cluster.array import MARK, Array
from ampcompare.sweeps.prepare import prepare
from ampcompare.sweeps.process import note_end
from ampcompare.sweeps.queue import Queue
from ampcompare.sweeps.storage import sqlite_url
from ampcompare.sweeps.sweep_file import read_sweep
from ampcompare.sweeps.table import Row

XS = {"parameters": {"x": {"values": [1, 2, 3]}}}
FAILS = {"parameters": {"x": {"values": [1, 2, 3]}, "fail": {"value": 2}}}


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


def ran(place) -> Counter:
    return Counter(event["given"]["x"] for event in place.events("began"))


def mended(place) -> None:
    """No run fails from here on."""
    program = place.folder / "program.py"
    program.write_text(program.read_text().replace("sys.exit(3)", "pass"))


@pytest.mark.slow
def test_holes_are_listed_without_writing_anything_and_filled_by_new_runs(place, said):
    place.file(**FAILS)
    before = sorted(place.folder.rglob("*"))
    code, told = said("--missing")
    listed = [line.split()[1] for line in told.splitlines() if line.startswith("missing")]
    assert (code, sorted(listed)) == (3, ["x=1", "x=2", "x=3"])
    assert "3 points: 3 missing" in told
    assert sorted(place.folder.rglob("*")) == before
    code, told = said()
    assert (code, "1 of 3 runs failed" in told, "failed (exit code 3: the last words)" in told) == (
        1,
        True,
        True,
    )
    code, told = said("--missing")
    assert (code, "3 points: 2 finished, 1 failed" in told) == (3, True)
    (line,) = (line for line in told.splitlines() if line.startswith("failed"))
    (failed,) = (e["run"] for e in place.events("began") if e["given"]["x"] == "2")
    assert "the last words" in line
    assert failed in line
    mended(place)
    assert said("--fill")[0] == 0
    assert ran(place) == {"1": 1, "2": 2, "3": 1}
    assert len({event["run"] for event in place.events("began")}) == 4
    code, told = said("--missing")
    assert (code, "3 points: 3 finished; whole" in told) == (0, True)


@pytest.mark.slow
def test_of_a_search_what_failed_in_its_own_database_is_run_again(place, said):
    x = {"x": {"values": [1, 2]}, "fail": {"value": 2}}
    place.file(method="bayes", metric={"name": "score"}, run_cap=4, parameters=x)
    told = said()[1]
    failed = ran(place)["2"]
    assert ("never logged score: the sweep learns nothing from it" in told) == (failed < 4)
    code, told = said("--missing")
    assert (code == 3, f"{failed} failed" in told) == (failed > 0, failed > 0), told
    mended(place)
    code, told = said("--fill")
    assert (code, "4 points: 4 finished; whole" in told) == (0, True), told
    assert len(place.events("began")) == 4 + failed


def test_wrong_words_are_one_line_and_start_nothing(place, said, subtests: pytest.Subtests):
    place.file(**FAILS)
    for words, why in (
        (["--missing", "--fill"], "leave one out"),
        (["--missing", "--until-decided"], "leave it out"),
        (["--missing", "--storage", "nonsense"], "--storage nonsense"),
        (["--fill", "y"], "expected key=value"),
        *(
            (["--storage", url], f"error: --storage {url}: cannot be used (")
            for url in ("nonsense", "oracle9://x")
        ),
        (["--storage", "sqlite:////no/such/folder/x.db"], "cannot be used ("),
    ):
        with subtests.test(words=words):
            code, told = said(*words)
            assert (code, told.count("\n"), why in told) == (2, 1, True), told
    assert not place.events("began")


def array(place, monkeypatch) -> tuple[Array, list[Row]]:
    """An array of the sweep as it was submitted, none of whose runs has ended, and its runs."""
    file = place.file(**XS)
    monkeypatch.chdir(place.folder)
    ready = prepare(str(file), [f"output_dir={place.out}"])
    made = Array(place.out)
    made.make()
    ready, kept = made.agreed(ready)
    made.write("sweep", kept)
    runs = made.rows(ready, kept, {})
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


@pytest.mark.slow
def test_what_waits_or_runs_as_a_job_is_left_alone_until_it_is_gone(place, said, monkeypatch):
    _, runs = array(place, monkeypatch)
    queued(place, monkeypatch, "101_0")
    code, told = said("--missing")
    assert (code, "3 points: 1 running, 2 missing" in told) == (3, True), told
    assert "in the queue as job 101_0" in told
    code, told = said("--fill")
    assert (code, "1 point is running: left alone" in told) == (3, True), told
    assert {*ran(place)} == {"1", "2", "3"} - {str(runs[0].parameters["x"])}
    assert said("--fill")[0] == said("--missing")[0] == 3  # nothing is left to do here
    queued(place, monkeypatch)  # cancelled before it began: no trace of it
    assert said("--fill")[0] == 0
    assert ran(place) == {"1": 1, "2": 1, "3": 1}
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


def test_a_database_that_is_none_is_a_line(place, said):
    place.file(**XS)
    place.out.mkdir()
    (place.out / "sweep.db").write_bytes(b"no database" * 1000)
    code, told = said("--missing")
    assert (code, told.count("\n")) == (2, 1)
    assert "cannot be used (file is not a database)" in told


@pytest.mark.parametrize("word", ["interrupted", "lost"])
def test_a_run_that_is_queued_again_is_not_missing(place, said, word):
    found = read_sweep(place.file(**XS))
    place.out.mkdir()
    queue = Queue(found, sqlite_url(place.out), "sweep")
    assert queue.end(queue.claim(), word)
    assert "3 points: 1 stopped, 2 missing" in said("--missing")[1]
