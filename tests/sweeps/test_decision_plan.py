"""What a sweep says before its first run and after it: its cost, and what it can decide."""

import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from scipy import stats
from support.bench_results import arm, result_of
from support.fakes import plan
from support.known_runs import BASE
from support.quick import ROOT
from support.wandb_files import write_runs

from ampcompare import metrics
from ampcompare.analysis.statistics.sample_size import seeds_to_clear
from ampcompare.config.schema import SEQUENTIAL_LOOKS, SEQUENTIAL_SHARES
from ampcompare.errors import UserError
from ampcompare.sweeps.decision_plan import (
    describe_decision_plan,
    describe_first_run,
    make_decision_plan,
    print_plan,
)
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.prepare import PreparedSweep, SweepOptions, prepare


@pytest.fixture(autouse=True)
def _in_checkout(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)


def ready(*words: str, file: str = "compare_backends", **options: Any) -> PreparedSweep:
    return prepare(file, words, SweepOptions(**options))


@pytest.mark.parametrize(
    ("words", "options", "looks", "shares", "groups", "per_seed"),
    [
        (("seed=1,2,3",), {}, (3,), (1.0,), 2, 3),
        (("backend=none,native",), {}, (5,), (1.0,), 1, 2),
        ((), {"until_decided": True}, SEQUENTIAL_LOOKS, SEQUENTIAL_SHARES, 2, 3),
        (("plan.looks=[4,8,12]",), {"until_decided": True}, (4, 8, 12), (1 / 3,) * 3, 2, 3),
        (("plan.max_seeds=8",), {"until_decided": True}, (5, 8), (0.2, 0.8), 2, 3),
        (("plan.looks=[7]",), {"until_decided": True}, (7,), (1.0,), 2, 3),
        ((), {"control": "bookends"}, (5,), (1.0,), 2, 5),
    ],
)
def test_the_design_follows_from_file_words_and_options(words, options, looks, shares, groups, per_seed):
    plan = make_decision_plan(ready(*words, **options))
    assert (plan.looks, plan.shares) == (looks, pytest.approx(shares))
    assert (plan.groups, plan.runs_per_seed) == (groups, per_seed)
    assert (plan.margin, plan.train_samples) == (0.5, 50_000)


def own_sweep(folder: Path, **plan: Any) -> str:
    """Return the file of a sweep of the user's own data and of a metric between 0 and 1."""
    (folder / "scores.py").write_text("def mean_iou(outputs, targets): ...\nmean_iou.better = 'higher'\n")
    (folder / "data.py").write_text("def build(train): ...\n")
    content = yaml.safe_load((ROOT / "sweeps" / "compare_backends.yaml").read_text())
    content["metric"] = {"name": "eval/mean_iou", "goal": "maximize"}
    content["parameters"] |= {
        "task.metrics": {"value": [f"{folder}/scores.py:mean_iou"]},
        "data.source": {"value": f"{folder}/data.py:build"},
        "plan": {"parameters": {key: {"value": value} for key, value in plan.items()}},
    }
    file = folder / "own.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return str(file)


def bench_of(folder: Path, *rates: float, **content: Any) -> str:
    """Write the file of a benchmark of the data of `own_sweep`."""
    file = folder / "bench.json"
    arms = [arm("none").model_copy(update={"images_per_second": rate}) for rate in rates or (200, 400)]
    own = {"fingerprint": {"data": f"{folder}/data.py:build"}} | content
    file.write_text(result_of(*arms, **own).model_dump_json())
    return str(file)


def printed(prepared: PreparedSweep, width: int = 200) -> str:
    screen = io.StringIO()
    print_plan(prepared, Console(file=screen, width=width))
    return screen.getvalue()


def test_a_benchmark_of_own_data_gives_the_time(tmp_path):
    mean = (1 / 200 + 1 / 400) / 2
    for words, seconds in (
        ((), 640 * 15 * mean),
        (("data.train_limit=320",), 320 * 15 * mean),
        (("max_steps=20", "batch_size=16"), 320 * mean),
    ):
        prepared = ready(*words, file=own_sweep(tmp_path, margin=0.01))
        cost, *_ = describe_decision_plan(prepared, bench_of(tmp_path, train_samples=640))
        assert f"({max(1, round(seconds))} s a run, training alone, from " in cost
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(UserError, match="--bench"):
        describe_decision_plan(ready(), str(tmp_path / "other.json"))
    bench = bench_of(tmp_path, train_samples=None)
    cost, why, *_ = describe_decision_plan(ready(file=own_sweep(tmp_path, margin=0.01)), bench)
    assert cost.endswith("the first run shows how long the others take")
    assert why.startswith(f"{bench} gives no time")


def test_the_table_of_seeds_covers_the_scale_of_the_margin(tmp_path):
    """Its numbers are those of `sample_size`, which tests/analysis compares with SciPy."""
    lines = printed(ready("backend=none,native", file=own_sweep(tmp_path, margin=0.01))).splitlines()
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if "│" in line]
    deviations = [float(row[0]) for row in rows]
    assert (min(deviations), max(deviations)) == (0.001, 0.02)
    for row in rows:
        assert int(row[2]) == seeds_to_clear([0.01] * 2, float(row[0]), 0.95)
    without = printed(ready(file=own_sweep(tmp_path, looks=[5])))
    assert ("plan.margin=X" in without, "│" in without) == (True, False)


def test_each_sentence_of_a_plan_is_one_line(tmp_path, monkeypatch):
    """Also in a file, which is 80 columns wide for Rich; too few seeds, and a search, decide nothing."""
    monkeypatch.chdir(tmp_path)
    for seeds in ("1", "1,2", "1,2,3", "7"):
        prepared = ready(f"seed={seeds}")
        sentences = describe_decision_plan(prepared)
        assert [line for line in sentences if line not in printed(prepared, 80).splitlines()] == []
        is_too_few = seeds.count(",") < 2
        text = " ".join(sentences)
        assert ("needs at least 3 seeds" in text) == is_too_few
        assert ("have a standard deviation of at most" in text) != is_too_few
    (line,) = printed(ready(file="learning_rate"), 80).splitlines()
    assert line.endswith(": a search compares no groups over seeds, so it decides nothing")
    assert not [*tmp_path.iterdir()]


def test_a_number_of_seeds_that_the_plan_has_no_look_at_is_said():
    unplanned = ready("plan.looks=[5,10]", "plan.shares=[0.2,0.8]", "seed=1,2,3")
    (line,) = (line for line in describe_decision_plan(unplanned) if "has no look at" in line)
    assert "20%" in line


@pytest.mark.parametrize(
    ("training", "process", "per_process", "expected"),
    [
        (1.0, 24.0, None, "about 4 min one after the other (24 s a run"),  # 10 x 24 s
        # Five runs share a start of 20 s: 10 x (10 + 4) s.
        (10.0, 30.0, 5, "about 2 min one after the other (14 s a run"),
        (60.0, None, None, "about 10 min one after the other (60 s a run"),
    ],
)
def test_the_first_run_tells_the_time_of_the_others(
    tmp_path, training: float, process: float | None, per_process: int | None, expected: str
):
    first = plan("none", id="first")
    for row in first["rows"]:
        row["time/elapsed_seconds"] = training
    write_runs(tmp_path, [first])
    words = ("model.name=timm:resnet18", "data.source=synthetic", "backend=none,native")
    lines = describe_first_run(
        ready(*words, seeds_per_process=per_process), tmp_path, SweepRun(0, "first"), process
    )
    assert f"5 seeds: 10 runs, {expected}" in lines[0]


CHANCE = "(40% by always guessing the commonest class)"


@pytest.mark.parametrize(
    ("accuracy", "last_loss", "expected"),
    [(0.41, 1.0, CHANCE), (0.55, 1.0, ""), (0.55, 1.36, "hardly moved: from 1.386 to 1.360")],
)
def test_a_network_that_has_not_learned_is_said_after_the_first_run(
    tmp_path, accuracy: float, last_loss: float, expected: str
):
    made = plan("native", 1, steps=60)
    losses = [row for row in made["rows"] if "train/loss" in row]
    for number, row in enumerate(losses):
        row["train/loss"] = last_loss if number else 1.386
    for holder in (made["summary"], *made["rows"]):
        if "eval/accuracy" in holder:
            holder["eval/accuracy"] = accuracy - 0.001 * (holder["epoch"] < 5)
    made["summary"] |= {metrics.COMMONEST_CLASS: 0.4, metrics.TEST_IMAGES: 800, metrics.CLASSES: 4}
    write_runs(tmp_path, [made])
    lines = describe_first_run(ready(), tmp_path, SweepRun(0, made["wandb"]["id"]))
    text = " ".join(lines)
    assert expected in text
    assert (CHANCE in text, "hardly moved" in text) == (expected == CHANCE, "hardly" in expected)


def test_earlier_runs_of_the_recipe_give_time_and_standard_deviation(tmp_path):
    prepared = ready(f"output_dir={tmp_path}", "backend=none,native")
    config = prepared.config.to_dict()
    lower = [value + change for value, change in zip(BASE, (0.001, -0.001, 0.002, 0, -0.002), strict=True)]
    earlier = []
    for backend, accuracies in (("none", BASE), ("native", lower)):
        for seed, accuracy in enumerate(accuracies):
            made = plan(backend, seed, config=config | {"backend": backend, "seed": seed})
            made["summary"]["eval/accuracy"] = accuracy
            made["rows"][-1]["eval/accuracy"] = accuracy
            earlier.append(made)
    write_runs(tmp_path, earlier)
    text = " ".join(describe_decision_plan(prepared))
    differences = [100 * (a - b) for a, b in zip(lower, BASE, strict=True)]
    assert f"expected standard deviation: {stats.tstd(differences):.2f} (measured in earlier runs" in text
    # Runs of another recipe are none of these.
    other = ready(f"output_dir={tmp_path}", "backend=none,native", "optimizer.lr=0.3")
    assert "measured in earlier runs" not in " ".join(describe_decision_plan(other))
