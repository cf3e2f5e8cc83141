"""What a program needs to behave well: files that are whole, lines, commands and children."""

import io
import json
import math
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from rich.console import Console
from support.outside import Outside
from support.quick import QUICK
from support.shell import run_in_shell
from support.wandb_server.clients import wait_until

from ampcompare.runtime.atomic_files import replacing, write_json
from ampcompare.runtime.console import print_line
from ampcompare.runtime.paths import shell_command
from ampcompare.runtime.signals import run_to_completion


@pytest.mark.parametrize("problem", [None, OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_file_is_the_new_one_whole_or_the_old_one(tmp_path: Path, problem: BaseException | None):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(type(problem)) if problem else nullcontext(), replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
        if problem:
            raise problem
    assert path.read_bytes() == (b"old" if problem else b"new")
    assert [found.name for found in tmp_path.iterdir()] == ["x"]


def test_json_has_null_for_a_value_that_is_no_number(tmp_path: Path):
    write_json(tmp_path / "x", {"loss": [0.5, math.nan, -math.inf]})
    assert json.loads((tmp_path / "x").read_text()) == {"loss": [0.5, None, None]}


@pytest.mark.parametrize(
    "line",
    [
        "[bold]no markup[/bold] :smile: 1,234.5 samples/s",
        "Größe 好 🙂 " + "long " * 60,
        "a\tb\x07c\rd\x1b[31me\nf",
        "",
    ],
)
def test_a_line_outside_a_terminal_equals_what_rich_prints(line: str):
    plain, rich = io.StringIO(), io.StringIO()
    print_line(Console(file=plain, width=40), line)
    how = {"markup": False, "highlight": False, "emoji": False, "soft_wrap": True}
    Console(file=rich, width=40).print(line, **how)
    assert plain.getvalue() == rich.getvalue()


FULL = """
from rich.console import Console
from ampcompare.runtime.console import print_line
console = Console()
for _ in range(3):
    print_line(console, "a line")
print("a line of a library")
"""


def test_output_that_cannot_be_written_is_reported_once_and_fails_nothing_else():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", FULL]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr


@pytest.fixture
def environment(tmp_path: Path, outside: Outside) -> Path:
    """Make a project with an environment below it, whose only program prints its arguments."""
    scripts = tmp_path / "my project" / ".venv" / "bin"
    scripts.mkdir(parents=True)
    (scripts / "wandb").write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    (scripts / "wandb").chmod(0o755)
    outside.replace(sys, "executable", str(scripts / "python"))
    return tmp_path / "my project"


@pytest.mark.parametrize("inside", [True, False])
def test_a_printed_command_works_pasted_without_an_activated_environment(
    environment: Path, inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = environment if inside else tmp_path
    monkeypatch.chdir(folder)
    line = shell_command("wandb", "sync", tmp_path / "it's $HOME; *")
    assert line.startswith(".venv/bin/wandb ") == inside
    assert run_in_shell(line, folder).stdout == f"<sync><{tmp_path}/it's $HOME; *>"


def test_a_program_of_this_environment_that_is_on_the_path_is_called_by_its_name(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    scripts = environment / ".venv" / "bin"
    monkeypatch.setenv("PATH", f"{scripts}:{os.environ['PATH']}")
    assert shell_command("wandb", "login") == "wandb login"
    other = tmp_path / "other"  # a program of this name from another environment is not the same
    other.mkdir()
    (other / "wandb").write_text("#!/bin/sh\n")
    (other / "wandb").chmod(0o755)
    monkeypatch.setenv("PATH", f"{other}:{scripts}")
    assert shell_command("wandb", "login") != "wandb login"


def test_a_program_without_a_script_is_called_as_a_module(outside: Outside, tmp_path: Path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    outside.replace(sys, "executable", str(python))
    done = run_in_shell(shell_command("ampcompare", "--version"), tmp_path, PYTHONPATH="")
    assert done.stdout.startswith("ampcompare 0")


# It ends in order, and says so in a file; until then it says where it is.
ORDERLY = """
import os, pathlib, signal, sys, time
def end(number, frame):
    pathlib.Path(sys.argv[1], "heard").write_text(str(int(number)))
    raise SystemExit(128 + number)
signal.signal(signal.SIGUSR1, end)
pathlib.Path(sys.argv[1], "child.new").write_text(str(os.getpid()))
pathlib.Path(sys.argv[1], "child.new").rename(pathlib.Path(sys.argv[1], "child"))
time.sleep(600)
"""
PARENT = """
import os, sys
from ampcompare.runtime.signals import run_to_completion
raise SystemExit(run_to_completion([sys.executable, "-c", sys.argv[1], sys.argv[2]], os.environ))
"""


def test_a_signal_to_the_parent_alone_ends_both(tmp_path: Path):
    number = signal.SIGUSR1
    words = [sys.executable, "-c", PARENT, ORDERLY, str(tmp_path)]
    ready = tmp_path / "child"
    parent = subprocess.Popen(words, stderr=subprocess.PIPE)
    try:
        wait_until(ready.exists)
        parent.send_signal(number)
        _, errors = parent.communicate()
        assert parent.returncode == 128 + number
        assert errors == b""
        assert (tmp_path / "heard").read_text() == str(int(number))
        with pytest.raises(ProcessLookupError):
            os.kill(int(ready.read_text()), 0)
    finally:
        parent.kill()


def test_exit_codes():
    assert run_to_completion([sys.executable, "-c", "raise SystemExit(7)"], os.environ) == 7
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert run_to_completion([sys.executable, "-c", killed], os.environ) == 137


# Says each time that the garbage collector goes through PyTorch while it is loaded, and whether it was.
COLLECTIONS = """
import gc, sys
from ampcompare.entrypoint import main

def note(phase, info):
    if phase == "start" and "torch" in sys.modules and not gc.get_freeze_count():
        print("collected", flush=True)

gc.callbacks.append(note)
try:
    main(sys.argv[1:])
finally:
    print("torch" in sys.modules, flush=True)
"""


@pytest.mark.slow
def test_no_garbage_is_collected_among_pytorchs_modules(tmp_path: Path):
    """A device that is not there is refused by PyTorch, so it is loaded, and nothing is trained."""
    command = [sys.executable, "-c", COLLECTIONS, *QUICK, "device=cuda:99", f"output_dir={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "True\n"), done.stderr
