"""A sweep whose user changed his files is refused by name."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from ampcompare.sweeps.code_version import changed_files, code_files, note_code_version
from ampcompare.sweeps.journal import Journal, SweepRun
from ampcompare.sweeps.prepare import prepare_sweep
from ampcompare.sweeps.sweep_file import read_sweep

XS = {"x": {"values": [1, 2, 3]}}


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


def test_failed_runs_may_be_made_again_with_mended_code(project, tmp_path):
    program = project.folder / "program.py"
    with closing(Journal(tmp_path, "mine", {})) as journal:
        for index in (0, 1):
            journal.propose(SweepRun(index))
        note_code_version(journal, [program])
        program.write_text("# mended")
        for index, state, changed in ((0, "failed", []), (1, "finished", [str(program)])):
            journal.append("started", index=index, run_id="", process={})
            end = {"state": state, "value": None, "exit_code": 3, "by_signal": False}
            journal.append("ended", index=index, run_id="", **end)
            assert changed_files([program], journal.state) == changed


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
    project.prepend("# edited\n")
    code, output = project.sweep()
    assert (code, output.count("\n")) == (2, 1), output
    assert "helper.py, program.py: changed since runs of this sweep were made with it" in output
    assert f"output_dir={project.out}-2" in output
    assert len(project.events("began")) == 3
