"""The demo from its words to its page."""

import subprocess
import sys
from pathlib import Path

import pytest

from ampcompare import demo, load_runs
from ampcompare.cli import main
from ampcompare.sweeps.order import in_blocks

TINY = "model.name=tiny epochs=1 data.train_limit=32 data.test_limit=20 device=cpu".split()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["backend=native"], "the demo trains none, native, apex_o1; one backend alone: "),
        (["epoch=1"], "epochs"),
        pytest.param(
            ["model.name={folder}/net.py:build"],
            "no training step of none can be measured here: ",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_it_cannot_do_is_said_before_anything_is_trained(words, why, tmp_path: Path, capfd):
    (tmp_path / "net.py").write_text("def build(num_classes=10):\n    raise ValueError('no weights')\n")
    words = [word.format(folder=tmp_path) for word in words]
    with pytest.raises(SystemExit) as end:
        main(["demo", *words, "device=cpu", f"output_dir={tmp_path / 'out'}"])
    assert end.value.code == 2
    assert why in capfd.readouterr().err
    assert not [*tmp_path.rglob("*.wandb")]


def played(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ampcompare", "demo", *TINY, "output_dir=out", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_small_demo_measures_trains_three_times_in_a_drawn_order_and_writes_its_page(tmp_path: Path):
    done = played(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    runs = load_runs([str(tmp_path / "out")])  # in the order of their beginning
    trained = [run.option("backend") for run in runs]
    orders = [[one for one, _ in in_blocks("out", kinds, [None])] for kinds in demo.BACKENDS.values()]
    assert trained in orders
    parts = [line for line in done.stdout.splitlines() if line.startswith("---")]
    assert [part.partition(":")[0] for part in parts] == [f"--- {n} of 4" for n in (1, 2, 3, 4)]
    assert all("about" in part for part in parts)
    assert "sync:" not in done.stdout
    page = (tmp_path / "out" / "report" / "index.html").read_text(encoding="utf-8")
    assert "tiny on synthetic data" in page


@pytest.mark.slow
def test_a_training_that_fails_ends_it_without_a_page(tmp_path: Path):
    assert played(tmp_path, "optimizer.lr=1e30").returncode == 1
    assert len(load_runs([str(tmp_path / "out")])) == 1
    assert not (tmp_path / "out" / "report").exists()
