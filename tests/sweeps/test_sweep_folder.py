"""`ampcompare sweep FOLDER --status` and `--rerun FOLDER`: the folder of a sweep has its command."""

import json
import shutil

import pytest

from ampcompare.sweeps.sweep_command import SweepCommand, SweepOptions

FILE = {"name": "s", "parameters": {"x": {"values": [1, 2, 3]}, "fail": {"value": 9}}}


@pytest.mark.slow
def test_the_folder_is_enough_for_status_and_rerun_also_after_it_was_moved(project, ask):
    project.write_file(**FILE)
    assert ask("sweep.yaml", "--name", "other", "x=1,2", "fail=2", "--workers", "2")[0] == 1
    folder, moved = project.folder / "runs" / "other", project.folder / "moved"
    for named in ("runs/other", "runs/other/", str(folder)):
        code, output = ask(named, "--status")
        assert (code, "2 points: 1 finished, 1 failed" in output) == (3, True), output
    shutil.move(folder, moved)
    project.mend()
    code, output = ask("--rerun", "moved")
    assert code in (0, 1), output  # these programs write no record, so there may be no report
    assert sorted(event["given"]["x"] for event in project.events("began", moved)) == ["1", "2", "2"]
    assert ask("moved", "--status")[0] == 0


def begun(project, **content: object):
    folder = project.folder / "runs" / "s"
    folder.mkdir(parents=True)
    command = SweepCommand("sweep.yaml", (), SweepOptions(workers=2)).data()
    known = {"format": 2, "name": "s", "command": command, "sweep": {}}
    (folder / "sweep.json").write_text(json.dumps(known | content))
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runs/s"], "to continue it: "),
        (["runs", "--status"], "runs: no sweep has begun in this folder"),
        (["runs", "--rerun"], "runs: no sweep has begun in this folder"),
    ],
)
def test_other_uses_of_a_folder_are_answered(project, ask, words, message):
    project.write_file(**FILE)
    begun(project)
    code, output = ask(*words)
    assert (code, message in output) == (2, True), output
    if "continue" in message:
        assert "sweep sweep.yaml --workers=2" in output
        (project.folder / "sweep.yaml").unlink()
        code, output = ask("runs/s", "--status")
        assert (code, "sweep file sweep.yaml is not in" in output) == (2, True), output


def test_a_printed_command_has_every_option_that_was_given():
    options = SweepOptions(workers=1, cluster="slurm", wait=True, seeds_per_process=1)
    words = SweepCommand("s.yaml", ("epochs=1",), options).text("--status").split("sweep ")[1].split()
    assert words[0] == "s.yaml"
    assert {*words[1:]} == {
        *("--status", "--wait", "--workers=1", "--cluster=slurm", "--seeds-per-process=1", "epochs=1")
    }
