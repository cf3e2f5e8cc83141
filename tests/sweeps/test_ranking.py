"""A sweep always ends with a report: without a baseline to compare, a table of its runs, best first."""

import html
import io
import json
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from support.fakes import plan
from support.wandb_files import write_runs

from ampcompare.analysis.run_ranking import RankedRun, rank_runs
from ampcompare.report.ranking import write_ranking
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.journal import Journal
from ampcompare.sweeps.sweep import Sweep
from ampcompare.sweeps.sweep_file import read_sweep
from ampcompare.sweeps.sweep_report import report, report_options

OWN = ["${env}", "${interpreter}", "-m", "${program}", "run", "${args_no_hyphens}"]


def sweep_of(folder: Path, **content: Any) -> Sweep:
    (folder / "train.py").write_text("")
    file = {"program": str(folder / "train.py"), "method": "random", "run_cap": 9, **content}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(file, sort_keys=False))
    return read_sweep(folder / "sweep.yaml")


def finished(folder: Path, points: list[tuple[dict[str, Any], float | None]]) -> None:
    """Make the folder that of a sweep with these finished runs, each a point and a value of the metric."""
    with closing(Journal(folder, "sweep", {})) as journal:
        for index, (parameters, value) in enumerate(points):
            run = {"index": index, "run_id": f"run{index}"}
            journal.append("proposed", **run, parameters=parameters, plan={}, drawn={})
            journal.append("started", **run, process={})
            ended = {"state": RunState.FINISHED, "value": value, "exit_code": 0, "by_signal": 0}
            journal.append("ended", **run, **ended)


def write_records(folder: Path, count: int, *rows: dict[str, Any]) -> None:
    """Write the records of the first runs, each with these rows."""
    write_runs(folder, [plan("none", id=f"run{index}") | {"rows": rows} for index in range(count)])


def reported(sweep: Sweep, folder: Path) -> tuple[int, str, list[dict[str, Any]]]:
    """Return the exit code, the output, and the runs of the table."""
    output = io.StringIO()
    code = report(Console(file=output, width=200), sweep, folder)
    table = folder / "report" / "runs.json"
    runs = json.loads(table.read_text())["runs"] if table.exists() else []
    return code, output.getvalue(), runs


LR = {"distribution": "log_uniform_values", "min": 1e-4, "max": 0.1}
RATE = "lr: {distribution: log_uniform_values, min: 0.0001, max: 0.1}"
OWN_KEYS = f"program: ampcompare, command: {json.dumps(OWN)}, method: random"


@pytest.mark.parametrize(
    ("content", "point", "reason"),
    [  # of a file, and what each run has beside its rate
        # The first listed value was not drawn.
        (f"parameters: {{kind: {{values: [a, b, c]}}, {RATE}}}", "{kind: b}", "kind=a"),
        (
            "parameters: {opt: {parameters: {name: {values: [sgd, adam]}}}}",
            "{opt: {name: adam}}",
            "opt.name=sgd",
        ),
        # Values that are mappings, also in a grid and as the first of several.
        (
            "method: grid, parameters: {aug: {values: [{a: 1}, {a: 2}]}}",
            "{aug: {a: 1}}",
            "the values of aug are mappings",
        ),
        (
            f"{OWN_KEYS}, parameters: {{optimizer.{RATE}, batch_size: {{values: [8, 16]}}}}",
            "{batch_size: 8}",
            "does not vary the backend",
        ),
    ],
)
def test_without_a_usable_baseline_the_report_is_a_table_of_the_runs(
    tmp_path: Path, content: str, point: str, reason: str
):
    file = yaml.safe_load(f"{{{content}}}")
    sweep = sweep_of(tmp_path, metric={"name": "val_loss", "goal": "minimize"}, **file)
    keys = [key for key in ("lr", "optimizer.lr") if key in file["parameters"]]
    points = [(yaml.safe_load(point) | dict.fromkeys(keys, rate), rate) for rate in (0.1, 0.001, 0.02)]
    finished(tmp_path, points)
    write_records(tmp_path, len(points), {"val_loss": 0.5})
    code, output, rows = reported(sweep, tmp_path)
    assert code == 0, output
    assert reason in output
    assert [row["value"] for row in rows] == [0.001, 0.02, 0.1]
    assert [row["run"] for row in rows] == ["run1", "run2", "run0"]
    page = (tmp_path / "report" / "index.html").read_text()
    assert page.index("run1") < page.index("run2") < page.index("run0")
    for word in ("faster", "the same within", "inconclusive", "higher than", "lower than"):
        assert word not in output.lower()


def test_the_table_has_runs_that_failed_and_every_kind_of_value(tmp_path: Path):
    values: list[Any] = [None, [1, None], {"a": [1, "<b>"]}, "text", 1e-9]
    runs = [
        RankedRun(f"r{number}", RunState.FINISHED, number / 10, {"x": value})
        for number, value in enumerate(values)
    ]
    runs += [
        RankedRun("nan", RunState.FINISHED, math.nan, {"x": 1}),
        RankedRun("failed", RunState.FAILED, None, {"x": 1}),
        RankedRun("stopped", RunState.STOPPED, 99.0, {"x": 1}),
        RankedRun("absent", RunState.FINISHED, None, {}),
    ]
    ranking = rank_runs("s", "score", runs, ["x"], maximize=True)
    assert [run.run_id for run in ranking.runs[:5]] == [f"r{number}" for number in range(4, -1, -1)]
    assert {run.run_id for run in ranking.runs[5:7]} == {"nan", "absent"}
    assert [run.run_id for run in ranking.runs[7:]] == ["stopped", "failed"]
    console = Console(file=io.StringIO(), width=60)
    write_ranking(ranking, tmp_path, console)
    page = (tmp_path / "index.html").read_text()
    assert "<b>" not in page
    texts = html.unescape(page)
    for shown in ("1e-09", '{"a": [1, "<b>"]}', "[1, null]", "null"):
        assert f"<td>{shown}</td>" in texts
    content = json.loads((tmp_path / "runs.json").read_text())
    assert [run["parameters"] for run in content["runs"][:2]] == [{"x": 1e-9}, {"x": "text"}]
    assert content["runs"][5]["value"] is None


def test_a_report_that_cannot_be_written_is_an_error(tmp_path: Path):
    sweep = sweep_of(tmp_path, metric={"name": "loss"}, parameters={"lr": LR})
    finished(tmp_path, [({"lr": 0.01}, 0.25)])
    write_records(tmp_path, 1, {"loss": 0.25})
    (tmp_path / "report").write_text("a file, not a folder")
    code, output, _ = reported(sweep, tmp_path)
    assert code == 1
    assert output.startswith("no report: ")


def test_runs_without_records_are_listed(tmp_path: Path):
    sweep = sweep_of(tmp_path, method="grid", parameters={"x": {"values": [1, 2]}})
    finished(tmp_path, [({"x": 1}, None), ({"x": 2}, None)])
    code, output, rows = reported(sweep, tmp_path)
    assert code == 0
    assert "the runs wrote no W&B record" in output
    assert [row["parameters"]["x"] for row in rows] == [1, 2]


@pytest.mark.parametrize(
    ("parameters", "group_by", "baseline"),
    [
        # As records have it: whole numbers without a point, lists with commas, null by its meaning.
        ("optimizer.lr: {values: [1, 0.1]}", "optimizer.lr", "1"),
        ("training.clip_norm: {values: [null, 1.0]}", "training.clip_norm", "null"),
        ("data.mean: {values: [[0, 0.5, 0.5], [0.5, 0.5, 0.5]]}", "data.mean", "0,0.5,0.5"),
        # A mapping sets several options: runs that differ in one of them are not pooled.
        (
            "backend: {values: [none, native]}, model.kwargs: {values: [{width: 1}, {deep: 2}]}",
            "backend,model.kwargs.width,model.kwargs.deep",
            "none",
        ),
    ],
)
def test_the_baseline_of_our_own_training_is_written_as_in_records(
    tmp_path: Path, parameters: str, group_by: str, baseline: str
):
    varied = yaml.safe_load(f"{{{parameters}}}")
    sweep = sweep_of(tmp_path, program="ampcompare", method="grid", command=OWN, parameters=varied)
    options = report_options(sweep, tmp_path).analysis
    assert (options.group_by, options.baseline) == (group_by.split(","), baseline)


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("scor", ["score", "loss"], "did you mean score?"),
        ("bleu", ["loss"], "set metric.name in"),
        ("label", ["loss"], "its values are no numbers, such as 'cat'"),
        ("score", ["score", "loss"], ""),
    ],
)
def test_a_metric_that_no_run_logs_ends_the_sweep_with_an_error(
    tmp_path: Path,
    name: str,
    keys: list[str],
    message: str,
):
    parameters = {"lr": {"values": [0.1, 0.2]}}
    sweep = sweep_of(
        tmp_path, metric={"name": name, "goal": "maximize"}, method="random", parameters=parameters
    )
    value = 0.5 if name in keys else None
    finished(tmp_path, [({"lr": rate}, value) for rate in (0.1, 0.2)])
    write_records(tmp_path, 2, *[dict.fromkeys(keys, 0.5) | {"label": "cat"}] * 2)
    code, output, _ = reported(sweep, tmp_path)
    assert code == (1 if message else 0), output
    assert message in output
    assert ("error: metric.name=" in output) == bool(message)
