"""The demo from its words to its page: its order, its lines, a small real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ampcompare import demo
from ampcompare.bench import compare
from ampcompare.bench.compare import Benchmark, Row
from ampcompare.cli import main
from ampcompare.program import child
from ampcompare.records import load_runs
from ampcompare.report import command
from ampcompare.sweeps.order import in_blocks

ABOUT = {"dtype": "float32", "is_emulated": False}
ABOUT |= {"environment": {"device_name": "x", "device_type": "cpu", "cpu_threads": 2, "torch": "2"}}


class Played:
    """A demo whose measurement and trainings have ended as they begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failed: str | None = None) -> None:
        self.started: list[dict[str, str]] = []
        self.code = 0

        def measured(arms, minutes, say) -> Benchmark:
            figures = {
                "ratio": 1.0,
                "step_ms": 100.0,
                "images_per_second": 80.0,
                "peak_mib": 1.0,
                "rounds": 3,
            }
            rows = [Row(arm.label, arm.options, **figures, failed=failed, about=ABOUT) for arm in arms]
            return Benchmark(0.95, 1.0, rows[0], rows)

        def see_through(words: list[str], environment: object) -> int:
            self.started.append(dict(word.split("=", 1) for word in words if "=" in word))
            return self.code

        monkeypatch.setattr(compare, "compare", measured)
        monkeypatch.setattr(child, "see_through", see_through)
        monkeypatch.setattr(demo, "_half_type", lambda config: "bfloat16")
        monkeypatch.setattr(command, "make_report", lambda request, console: self.reports.append(request.out))
        self.reports: list[str] = []

    def play(self, *words: str) -> int:
        with pytest.raises(SystemExit) as end:
            main(["demo", *words])
        return int(end.value.code or 0)


def test_it_trains_in_an_order_drawn_for_its_folder_each_part_announced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    orders = []
    for number in range(6):
        played = Played(monkeypatch)
        folder = f"{tmp_path}/{number}"
        assert played.play(f"output_dir={folder}", "epochs=2") == 0
        trained = [options["backend"] for options in played.started]
        assert trained == [one for one, _ in in_blocks(folder, demo.BACKENDS["bfloat16"], [None])]
        assert {options["epochs"] for options in played.started} == {"2"}  # before what is chosen
        assert played.reports == [f"{folder}/report"]
        orders.append(tuple(trained))
    assert len(set(orders)) > 2
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("---")]
    assert [line.partition(":")[0] for line in lines[:4]] == [f"--- {n} of 4" for n in (1, 2, 3, 4)]
    assert all("about" in line for line in lines)


def test_a_training_that_fails_ends_it_without_a_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    played = Played(monkeypatch)
    played.code = 1
    assert played.play(f"output_dir={tmp_path}") == 1
    assert len(played.started) == 1
    assert not played.reports


@pytest.mark.parametrize(
    ("word", "failed", "why"),
    [
        ("backend=native", None, "the demo trains none, native, apex_o1; one backend alone: "),
        ("epoch=1", None, "epochs"),
        ("epochs=1", "ValueError: no", "no training step of none can be measured here: ValueError: no"),
    ],
)
def test_what_it_cannot_do_is_said_before_anything_is_trained(
    word: str,
    failed: str | None,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    played = Played(monkeypatch, failed)
    assert played.play(word) == 2
    assert why in capsys.readouterr().err
    assert not played.started


TINY = "model.name=tiny epochs=1 data.train_limit=32 data.test_limit=20 device=cpu".split()


@pytest.mark.slow
def test_a_small_demo_measures_trains_three_times_and_writes_its_page(tmp_path: Path):
    command = [sys.executable, "-m", "ampcompare", "demo", *TINY, "output_dir=out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    runs = load_runs([str(tmp_path / "out")])
    assert len({run.option("backend") for run in runs}) == 3
    assert "4 of 4: the page" in done.stdout
    assert "sync:" not in done.stdout
    page = (tmp_path / "out" / "report" / "index.html").read_text(encoding="utf-8")
    assert "tiny on synthetic data" in page
