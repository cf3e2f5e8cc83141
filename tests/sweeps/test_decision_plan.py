"""What a sweep says before its first run and after it: its cost, and what it can decide."""

import io
import math
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

from ampcompare.config.schema import SEQUENTIAL_LOOKS, SEQUENTIAL_SHARES
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


def deviation_limit(margin: float, n: int, k: int, share: float) -> float:
    """Return the standard deviation at which SciPy's non-central t gives a power of 90%, by bisection."""
    low, high = 0.001, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        limit = stats.t.ppf(1 - 0.025 * share / k, n - 1)
        power = 1 - 2 * stats.nct.cdf(limit, n - 1, min(30, margin * math.sqrt(n) / middle))
        low, high = (middle, high) if power > 0.9 else (low, middle)
    return low


@pytest.mark.parametrize("name", ["token_accuracy", "balanced_accuracy", "top1"])
def test_the_margin_of_an_accuracy_of_ones_own_is_that_of_the_report(tmp_path, name):
    file, scores = tmp_path / "own.yaml", tmp_path / "scores.py"
    scores.write_text(f"def {name}(outputs, targets): ...\n")
    content = yaml.safe_load((ROOT / "sweeps" / "compare_backends.yaml").read_text())
    del content["parameters"]["plan"]
    content["metric"] = {"name": f"eval/{name}", "goal": "maximize"}
    content["parameters"]["task.metrics"] = {"value": [f"{scores}:{name}"]}
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    plan = make_decision_plan(ready(file=str(file)))
    assert plan is not None
    assert (plan.margin, plan.unit) == (0.5, "points")
    content["metric"] = {"name": "eval/loss", "goal": "minimize"}
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    plan = make_decision_plan(ready(file=str(file)))
    assert plan is not None
    assert (plan.margin, plan.unit) == (None, "")


@pytest.mark.parametrize(
    ("words", "options", "looks", "shares", "groups", "per_seed"),
    [
        ((), {}, (5,), (1.0,), 2, 3),
        (("seed=1,2,3",), {}, (3,), (1.0,), 2, 3),
        (("backend=none,native",), {}, (5,), (1.0,), 1, 2),
        ((), {"until_decided": True}, SEQUENTIAL_LOOKS, SEQUENTIAL_SHARES, 2, 3),
        (("plan.looks=[4,8,12]",), {"until_decided": True}, (4, 8, 12), (1 / 3,) * 3, 2, 3),
        (
            ("plan.looks=[4,8]", "plan.shares=[0.1,0.9]"),
            {"until_decided": True},
            (4, 8),
            (0.1, 0.9),
            2,
            3,
        ),
        (("plan.max_seeds=8",), {"until_decided": True}, (5, 8), (0.2, 0.8), 2, 3),
        ((), {"control": "chaos"}, (5,), (1.0,), 2, 4),
        ((), {"control": "bookends"}, (5,), (1.0,), 2, 5),
    ],
)
def test_the_design_follows_from_file_words_and_options(words, options, looks, shares, groups, per_seed):
    plan = make_decision_plan(ready(*words, **options))
    assert (plan.looks, plan.shares) == (looks, pytest.approx(shares))
    assert (plan.groups, plan.runs_per_seed) == (groups, per_seed)
    assert (plan.margin, plan.train_samples) == (0.5, 50_000)
    for number, (n, share) in enumerate(zip(looks, shares, strict=True)):
        expected = deviation_limit(0.5, n, groups, share)
        assert plan.largest_deviation(number) == pytest.approx(expected, rel=1e-3)


def test_a_tuned_setting_multiplies_the_groups_and_not_the_seeds(project):
    """Each learning rate has a baseline of its own."""
    lists = {"backend": ["none", "native"], "optimizer.lr": [0.1, 0.2, 0.3], "seed": [1, 2, 3, 4]}
    parameters = {key: {"values": values} for key, values in lists.items()}
    command = ["ampcompare", "run", "${args_no_hyphens}"]
    file = project.write_file(parameters=parameters, program="ampcompare", command=command)
    plan = make_decision_plan(ready(file=str(file)))
    assert (plan.groups, plan.runs_per_seed, plan.looks) == (3, 6, (4,))


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


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ((), 640 * 15 * (1 / 200 + 1 / 400) / 2),
        (("data.train_limit=320",), 320 * 15 * (1 / 200 + 1 / 400) / 2),
        (("max_steps=20", "batch_size=16"), 320 * (1 / 200 + 1 / 400) / 2),
    ],
)
def test_a_benchmark_of_own_data_gives_the_time(tmp_path, words: tuple[str, ...], seconds: float):
    prepared = ready(*words, file=own_sweep(tmp_path, margin=0.01))
    cost, *_ = describe_decision_plan(prepared, bench_of(tmp_path, train_samples=640))
    assert f"({max(1, round(seconds))} s a run, training alone, from " in cost


@pytest.mark.parametrize(
    "content", [{}, {"train_samples": None}, {"train_samples": 640, "fingerprint": {"data": "cifar10"}}]
)
def test_a_benchmark_that_gives_no_time_says_so_and_the_first_run_does(tmp_path, content: dict[str, Any]):
    bench = bench_of(tmp_path, **content)
    prepared = ready(file=own_sweep(tmp_path, margin=0.01), bench=bench)
    cost, why, *_ = describe_decision_plan(prepared, bench)
    assert cost.endswith("the first run shows how long the others take")
    assert why.startswith(f"{bench} gives no time")
    first = plan("none", id="first")
    write_runs(tmp_path, [first])
    assert "as the first run took" in describe_first_run(prepared, tmp_path, SweepRun(0, "first"), 24.0)[0]


@pytest.mark.parametrize("margin", [0.002, 0.01, 0.5, 3])
def test_the_table_of_seeds_covers_the_scale_of_the_margin(tmp_path, margin: float):
    """Each cell is the smallest number of seeds whose limit, by SciPy, is at least that of its row."""
    prepared = ready("backend=none,native", file=own_sweep(tmp_path, margin=margin))
    screen = io.StringIO()
    print_plan(prepared, Console(file=screen, width=200))
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in screen.getvalue().splitlines()
        if "│" in line
    ]
    deviations = [float(row[0]) for row in rows]
    assert min(deviations) <= 0.1 * margin < 2 * margin <= max(deviations)
    for deviation, row in zip(deviations, rows, strict=True):
        seeds = int(row[2])
        in_margins = deviation / margin  # the number of seeds depends on nothing else
        assert in_margins <= 1.01 * deviation_limit(1.0, seeds, 1, 1.0)
        assert seeds == 3 or in_margins >= 0.99 * deviation_limit(1.0, seeds - 1, 1, 1.0)


def test_without_a_margin_there_is_no_table(tmp_path):
    screen = io.StringIO()
    print_plan(ready(file=own_sweep(tmp_path, looks=[5])), Console(file=screen, width=200))
    assert "plan.margin=X" in screen.getvalue()
    assert "│" not in screen.getvalue()


@pytest.mark.parametrize(
    ("words", "until_decided", "printed", "unplanned"),
    [
        ((), False, "looks [5]", None),
        (("seed=1,2,3",), False, "looks [3]", None),
        (("seed=1,2,3,4,5,6,7",), False, "looks [7]", None),
        (("seed=1",), False, None, None),
        (("seed=1,2,3",), True, "looks [5, 10], shares [0.2, 0.8]", None),
        (("plan.looks=[5,10]",), False, "looks [5, 10]", None),
        (("plan.looks=[5,10]", "plan.shares=[0.2,0.8]", "seed=1,2,3"), False, "looks [5, 10]", "20%"),
    ],
)
def test_the_printed_looks_are_those_of_the_seeds(words, until_decided: bool, printed, unplanned):
    prepared = ready(*words, until_decided=until_decided)
    if printed is None:
        assert "looks" not in prepared.plan_summary
    else:
        assert printed in prepared.plan_summary
    told = [line for line in describe_decision_plan(prepared) if "has no look at" in line]
    assert len(told) == (unplanned is not None)
    assert all(unplanned in line for line in told)


@pytest.mark.parametrize(
    ("training", "process", "per_process", "expected"),
    [
        (1.0, 24.0, None, "about 4 min one after the other (24 s a run, as the first run took)"),  # 10 x 24 s
        (600.0, 615.0, None, "about 1.7 h one after the other (10 min a run, as the first run took)"),
        # Five runs share a start of 20 s: 10 x (10 + 4) s.
        (10.0, 30.0, 5, "about 2 min one after the other (14 s a run, as the first run took)"),
        (30.0, 24.0, None, "about 4 min one after the other (24 s a run, as the first run took)"),
        (None, 24.0, 5, "about 4 min one after the other (24 s a run, as the first run took)"),
    ],
)
def test_the_time_of_a_run_includes_the_start_of_its_process(
    tmp_path, training: float | None, process: float, per_process: int | None, expected: str
):
    first = plan("none", id="first")
    for row in first["rows"]:
        del row["time/elapsed_seconds"]
        if training is not None:
            row["time/elapsed_seconds"] = training
    write_runs(tmp_path, [first])
    own = ready(
        "model.name=timm:resnet18",
        "data.source=synthetic",
        "backend=none,native",
        seeds_per_process=per_process,
    )
    lines = describe_first_run(own, tmp_path, SweepRun(0, "first"), process)
    assert lines[0] == f"5 seeds: 10 runs, {expected}"


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
