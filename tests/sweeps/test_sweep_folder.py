"""`ampcompare sweep FOLDER --status` and `--rerun FOLDER`: the folder of a sweep has its command."""

import json
import os
import shutil
from collections import Counter

import pytest

from ampcompare.cli import main
from ampcompare.sweeps.sweep_command import SweepCommand, SweepOptions


@pytest.fixture
def ask(project, monkeypatch, capsys):
    """Run `ampcompare sweep` in the folder of the project; return exit code and output."""
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("COLUMNS", "1000")

    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["sweep", *words])
        output = capsys.readouterr()
        return ended.value.code or 0, output.out + output.err

    return run


def starts(project, folder) -> Counter:
    return Counter(event["given"]["x"] for event in project.events("began", folder))


FILE = {"name": "s", "parameters": {"x": {"values": [1, 2, 3]}, "fail": {"value": 9}}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (["fail=2"], "runs/s"),
        (["fail=2", "output_dir=elsewhere", "--workers", "2"], "elsewhere"),
        (["--name", "other", "x=1,2", "fail=2"], "runs/other"),
    ],
)
def test_the_folder_is_enough_for_status_and_rerun(project, ask, words, folder):
    project.write_file(**FILE)
    assert ask("sweep.yaml", *words)[0] == 1  # x=2 fails
    for named in (folder, f"{folder}/", os.path.abspath(folder)):
        code, output = ask(named, "--status")
        assert code == 3, output
        assert "1 failed" in output
        assert "queued" not in output
    before = starts(project, project.folder / folder)
    project.mend()
    code, output = ask("--rerun", folder)
    assert code in (0, 1), output  # these programs write no record, so there may be no report
    assert starts(project, project.folder / folder) - before == Counter({"2": 1})
    assert ask(folder, "--status")[0] == 0


@pytest.mark.slow
def test_a_folder_that_was_moved_keeps_its_runs(project, ask):
    project.write_file(**FILE)
    ask("sweep.yaml", "fail=3")
    shutil.move(project.folder / "runs" / "s", project.folder / "moved")
    code, output = ask("moved", "--status")
    assert (code, "3 points: 2 finished, 1 failed" in output) == (3, True), output
    assert "output_dir=moved" in output


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


def test_a_folder_without_its_file_is_refused(project, ask):
    begun(project)
    code, output = ask("runs/s", "--status")
    assert (code, "sweep file sweep.yaml is not in" in output) == (2, True), output


@pytest.mark.parametrize("workers", [1, 2])
def test_a_printed_command_has_every_option_that_was_given(workers: int):
    options = SweepOptions(workers=workers, cluster="slurm", wait=True, seeds_per_process=1)
    text = SweepCommand("s.yaml", ("epochs=1",), options).text("--status")
    _, _, words = text.partition("ampcompare sweep ")
    assert words == (
        f"s.yaml --status --wait --workers={workers} --cluster=slurm --seeds-per-process=1 epochs=1"
    )
