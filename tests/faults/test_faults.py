"""What a machine can do to a run, each caused for real: full disks, folders that go, odd places."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from support import faults
from support.quick import QUICK, ROOT
from support.same_run import steps_of
from support.wandb_files import leet_rows

from ampcompare import load_runs

KEY = "0123456789abcdef0123456789abcdef01234567"


def assert_whole(folder: Path, *, cut: bool = False) -> None:
    """Check that the record has every row up to a step, each once.

    How many of the rows an earlier part of the run also had depends on timing. With `cut` an earlier part may
    end inside a record.
    """
    (record,) = load_runs([folder])
    problems = [
        p
        for p in record.problems
        if not p.endswith("logged twice because the run was resumed; the later rows count.")
        and not (cut and "The file ends inside a record" in p)
    ]
    assert (record.state, problems) == ("finished", [])
    assert record.history["global_step"].max() == 8


@pytest.mark.slow
def test_a_client_that_is_killed_alone_fails_the_run_in_one_line_and_resume_completes_it(tmp_path: Path):
    given = (*QUICK, "log.every=1", "checkpoint.every_epochs=1", f"output_dir={tmp_path}")
    done = faults.run(*given, end_service_at=7)
    assert done["code"] == 1, done
    assert "Traceback" not in done["said"]
    done = faults.run(*given, "resume=auto")
    assert done["code"] == 0, done
    assert "resuming run" in done["said"]
    assert_whole(tmp_path, cut=True)


@pytest.mark.parametrize("at", [5, 8])  # 8: behind the last step
def test_sigterm_to_every_process_at_once_interrupts_a_run_as_one_to_it_alone(tmp_path: Path, at: int):
    """As Slurm sends it: W&B's service gets it, too, and ends at once."""
    given = (*QUICK, "log.every=1", f"output_dir={tmp_path}")
    done = faults.run(*given, signal_at=[at, signal.SIGTERM], all=True)
    assert done["code"] == 143, done
    assert "Traceback" not in done["said"], done
    (line,) = [line for line in done["said"].splitlines() if line.startswith("interrupted")]
    if at < 8:
        interrupted = int(line.removeprefix("interrupted at step ").split()[0])
        assert "incomplete" not in done["said"]
        rows = [row for file in tmp_path.rglob("*.wandb") for row in leet_rows(file) if "train/loss" in row]
        assert sorted(row["global_step"] for row in rows) == list(range(1, interrupted + 1))
    done = faults.run(*given, "resume=auto")
    assert done["code"] == 0, done
    assert_whole(tmp_path, cut=True)
    assert steps_of(tmp_path) == list(range(1, 9))


def test_a_full_disk_costs_checkpoints_and_no_training(tmp_path: Path):
    # Limits the size of a file, as root knows no full disk: the checkpoint does not fit, W&B's record still
    # does.
    done = faults.run(
        *QUICK, f"output_dir={tmp_path}", file_limit=50_000, env={"AMPCOMPARE_CACHE": str(tmp_path / "c")}
    )
    assert done["code"] == 0, done
    assert "could not be written" in done["said"]
    assert "Traceback" not in done["said"]
    assert not list(tmp_path.rglob("*.tmp"))
    assert_whole(tmp_path)


def test_an_output_folder_that_vanishes_is_made_again_for_checkpoints(tmp_path: Path):
    out = tmp_path / "out"
    done = faults.run(*QUICK, f"output_dir={out}", remove_at=[3, str(out)])
    assert "Traceback" not in done["said"], done
    assert done["code"] == 1
    assert ".wandb is incomplete: the file was removed" in done["said"] or (
        ".wandb: the file was removed); continue with resume=auto"
        in done["said"]  # a row came after a second
    )
    assert list((out / "checkpoints").rglob("*.pt"))


def test_not_enough_memory_is_one_line_with_the_batch_size(tmp_path: Path):
    done = faults.run(*QUICK, f"output_dir={tmp_path}", out_of_memory_at=3)
    assert done["code"] == 1
    assert "Traceback" not in done["said"]
    assert "out of memory on cpu with batch_size=8; try a smaller batch_size" in done["said"]
    (record,) = load_runs([tmp_path])
    assert record.state == "failed"


@pytest.mark.slow
def test_a_home_that_cannot_be_written_a_foreign_locale_and_an_odd_path_together(tmp_path: Path):
    """No home folder, no terminal, a locale that is not UTF-8, a path with spaces and foreign letters."""
    odd, home = tmp_path / "out puts é 漢 'quoted'", tmp_path / "home"
    home.write_text("not a folder")  # root may write to any folder
    for path in (
        f"bilder ü/{split}/{label}/{n}.png" for split in ("train", "test") for label in "ab" for n in "12"
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (200, 10, 40 * int(path[-5]))).save(tmp_path / path)
    env = {"HOME": str(home), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    env |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}
    words = [*QUICK, "data.source=image_folder", f"data.root={tmp_path / 'bilder ü'}", "batch_size=2"]
    words += ["data.train_limit=null", "data.test_limit=null", f"output_dir={odd}"]
    command = [sys.executable, str(ROOT / "run_experiment.py"), *words]
    done = subprocess.run(command, env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert b"Traceback" not in done.stderr
    (record,) = load_runs([odd])
    assert record.state == "finished"
    assert list((odd / "checkpoints").rglob("*.pt"))


@pytest.mark.slow
def test_a_terminal_that_goes_away_stops_the_run_as_sigterm_does(tmp_path: Path):
    """A lost connection: the kernel sends SIGHUP, and what is printed meets an error."""
    words = [*QUICK, "epochs=100000", "eval.every=1000", f"output_dir={tmp_path}"]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
        os.execve(sys.executable, [sys.executable, str(ROOT / "run_experiment.py"), *words], env)
    said = b""
    while b"samples/s" not in said:
        said += os.read(terminal, 65_536)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 129, said
    (record,) = load_runs([tmp_path])
    assert (record.state, record.exit_code) == ("failed", 255)
    assert list((tmp_path / "checkpoints").rglob("*.pt"))


def test_no_file_that_a_run_writes_holds_a_secret(tmp_path: Path):
    secrets = {
        "WANDB_API_KEY": KEY,
        "AWS_SECRET_ACCESS_KEY": "fakeSecretOfTheCloud",
        "HF_TOKEN": "hf_fakefakefake",
    }
    done = faults.run(*QUICK, f"output_dir={tmp_path}", env=secrets | {"WANDB_MODE": "offline"})
    assert done["code"] == 0, done
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5
    for secret in secrets.values():
        assert secret not in done["said"]
        for path in files:
            assert secret.encode() not in path.read_bytes(), path


@pytest.mark.slow
def test_a_long_run_grows_in_neither_memory_nor_handles(tmp_path: Path):
    watched = tmp_path / "watched"
    words = (
        *QUICK,
        "epochs=100000",
        "max_steps=3000",
        "eval.every=150",
        "diagnostics.every=150",
        "log.every=50",
    )
    done = faults.run(
        *words, "checkpoint.every_epochs=150", f"output_dir={tmp_path}", watch_every=150, watched=str(watched)
    )
    assert done["code"] == 0, done
    figures = [[float(x) for x in line.split()] for line in watched.read_text().splitlines()]
    resident, handles = zip(*figures, strict=True)
    assert len(resident) == 20
    early, late = slice(6, 12), slice(-6, None)
    assert max(resident[late]) < 1.05 * max(resident[early]), resident
    assert max(handles[late]) <= max(handles[early]) + 1, handles
