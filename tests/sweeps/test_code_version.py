"""A sweep whose user changed his files is refused by name."""

import os
from pathlib import Path

import pytest
from support.sweep_project import SweepProject

from ampcompare.sweeps.code_version import code_files
from ampcompare.sweeps.prepare import prepare_sweep
from ampcompare.sweeps.sweep_file import read_sweep

XS = {"x": {"values": [1, 2, 3]}}


def edit(project: SweepProject, text: str = "# edited\n", name: str = "program.py") -> None:
    path = project.folder / name
    path.write_text(text + path.read_text())


def test_the_files_of_a_sweep_are_its_program_those_of_its_command_and_its_plugins(project, monkeypatch):
    monkeypatch.chdir(project.folder)
    for name in ("net.py", "data.py", "more.yaml"):
        Path(name).touch()
    theirs = read_sweep(
        project.write_file(command=["${env}", "${program}", "more.yaml", "${args}"], parameters=XS)
    )
    assert [path.name for path in code_files(theirs, [], trains_here=False)] == ["program.py", "more.yaml"]
    plugins = {"model.name": {"values": ["./net.py:build", "tiny"]}}
    ours = read_sweep(
        project.write_file(program="ampcompare", command=["ampcompare", "run", "${args}"], parameters=plugins)
    )
    words = ["data.source=./data.py:build", "task.loss=./gone.py:loss"]
    assert [path.name for path in code_files(ours, words, trains_here=True)] == ["net.py", "data.py"]
    nested = {"model": {"parameters": {"name": {"value": "./net.py:build"}}}}
    grouped = read_sweep(
        project.write_file(program="ampcompare", command=["ampcompare", "run", "${args}"], parameters=nested)
    )
    assert prepare_sweep(grouped, []).code_files == (Path("net.py"),)


@pytest.mark.slow
def test_a_sweep_with_changed_code_is_refused_by_name_and_nothing_is_started(project):
    helper = project.folder / "helper.py"  # which the program imports
    helper.write_text("X = 1\n")
    project.prepend("import helper\n")
    project.write_file(parameters=XS)
    assert project.sweep()[0] == 0
    os.utime(project.folder / "program.py")  # its time alone changes nothing
    assert project.sweep()[0] == 0
    helper.write_text("X = 2\n")
    edit(project)
    code, output = project.sweep()
    assert (code, output.count("\n")) == (2, 1), output
    assert "helper.py, program.py: changed since runs of this sweep were made with it" in output
    assert f"output_dir={project.out}-2" in output
    assert len(project.events("began")) == 3


@pytest.mark.slow
def test_what_failed_is_made_again_with_mended_code_where_nothing_else_was_kept(project):
    project.write_file(parameters={"x": {"values": [1]}, "fail": {"value": 1}})
    assert project.sweep()[0] == 1
    program = project.folder / "program.py"
    program.write_text(program.read_text().replace("sys.exit(3)", "pass"))
    assert project.sweep("--rerun")[0] == 0
    assert len(project.events("ended")) == 1


@pytest.mark.slow
def test_code_that_changes_while_the_sweep_runs_ends_it_before_the_next_run(project):
    """It continues with the old code."""
    project.write_file(parameters={**XS, "hold": {"value": "all"}})
    project.hold()
    driver = project.start()
    project.wait_for("began", 1)
    before = (project.folder / "program.py").read_text()
    edit(project)
    project.release()
    output, _ = driver.communicate()
    assert driver.returncode == 2, output
    assert "program.py: changed while the sweep ran" in output
    assert len(project.events("ended")) == len(project.events("began")) == 1
    assert project.sweep()[0] == 2
    (project.folder / "program.py").write_text(before)
    code, output = project.sweep()
    assert code == 0, output
    assert len({event["run"] for event in project.events("began")}) == 3
