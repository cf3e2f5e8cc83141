"""Runs of different length are not compared as equals, unless the best value counts."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.external import FULL, MIXED, external

from ampcompare import analyse_runs, load_runs
from ampcompare.runs import RunRecord

ARMS = {FULL: "fp32", MIXED: "amp"}
NAMED = "val_acc:max:fraction"


def lengths_in(reason: str) -> list[str]:
    """Return the steps or epochs that a reason names."""
    return re.findall(r" (\d+)\b", reason)


def arms(mixed_rows: int, **changes: object) -> list[RunRecord]:
    """Return three runs per arm. The mixed ones have so many of 40 rows."""
    pairs = [(precision, seed) for precision in (FULL, MIXED) for seed in (1, 2, 3)]
    runs = [external(p, seed, steps=40 if p == FULL else mixed_rows) for p, seed in pairs]
    return [
        replace(run, config=run.config | {"arm": ARMS[p]}, **changes)
        for (p, _), run in zip(pairs, runs, strict=True)
    ]


def test_different_training_lengths_give_no_verdict_on_quality_and_a_caveat():
    analysis = analyse_runs(arms(16), metric=NAMED)
    claim = analysis.comparison("amp").claims["quality"]
    assert claim.shown == ()
    assert lengths_in(claim.why) == ["400", "160"]
    assert any(claim.why in remark for remark in analysis.caveats)


@pytest.mark.parametrize(
    ("rows", "options", "changes", "caveat"),
    [
        (40, {}, {}, ""),
        (16, {"best": True}, {}, "best value"),
        (16, {}, {"is_early_stopped": True}, "Early stopping"),
    ],
)
def test_equal_lengths_best_or_early_stopping_give_a_verdict(rows, options, changes, caveat):
    analysis = analyse_runs(arms(rows, **changes), metric=NAMED, margin=50.0, **options)
    assert "equivalent" in analysis.comparison("amp").claims["quality"].shown
    caveats = [remark for remark in analysis.caveats if "ended at step" in remark]
    assert [caveat in remark for remark in caveats] == [True] * bool(caveat)


@pytest.mark.parametrize(("rows", "is_equal"), [(99, True), (97, False)])
def test_lengths_within_two_percent_are_equal(rows, is_equal):
    lengths = {FULL: 100, MIXED: rows}
    runs = [external(p, seed, steps=lengths[p]) for p in (FULL, MIXED) for seed in (1, 2, 3)]
    short = [replace(r, config={"arm": ARMS[r.name[:-2]], "seed": r.config["seed"]}) for r in runs]
    analysis = analyse_runs(short, metric=NAMED).comparison("amp")
    assert (analysis.no_claim_reason == "") is is_equal


def test_hugging_faces_state_has_planned_length_and_early_stopping(tmp_path: Path):
    def reason(**more: object) -> str:
        for arm, last in (("a", 100), ("b", 40)):
            rows = [{"step": step, "eval_f1": 0.5 + step / 1000} for step in range(10, last + 1, 10)]
            state = {"global_step": last, "max_steps": 100, "log_history": rows}
            path = tmp_path / arm / "trainer_state.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(state | (more if arm == "b" else {})))
        runs = load_runs([f"{arm}={tmp_path / arm}" for arm in "ab"])
        return analyse_runs(runs, metric="eval_f1:max").comparison("b").no_claim_reason

    assert lengths_in(reason()) == ["100", "100", "40", "100"]
    assert reason(stateful_callbacks={"EarlyStoppingCallback": {}}) == ""


def tables(folder: Path, epochs: dict[str, int], columns: str, row: str) -> list[str]:
    """Write CSV files for three runs per arm, with ten rows in each epoch, and return the sources."""
    for arm, count in epochs.items():
        for seed in (1, 2, 3):
            lines = [
                row.format(epoch=epoch, step=step, total=10 * epoch + step, acc=0.5 + seed / 100 + epoch / 10)
                for epoch in range(count)
                for step in range(10)
            ]
            path = folder / arm / f"{seed}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join([columns, *lines]))
    return [f"{arm}={folder / arm}" for arm in epochs]


@pytest.mark.parametrize(
    ("columns", "row", "lengths"),
    [
        ("Epoch,iter,acc", "{epoch},{step},{acc}", ["39", "19"]),
        ("epoch,global_step,acc", "{epoch},{total},{acc}", ["39", "19"]),
    ],
)
def test_a_step_that_restarts_in_each_epoch_does_not_hide_unequal_lengths(tmp_path, columns, row, lengths):
    for count, expected in ((2, lengths), (4, [])):
        runs = load_runs(tables(tmp_path / str(count), {"a": 4, "b": count}, columns, row))
        analysis = analyse_runs(runs, metric="acc:max:fraction")
        assert lengths_in(analysis.comparison("b").no_claim_reason) == expected


def test_a_resumed_run_with_repeated_steps_is_as_long_as_its_last_step(tmp_path):
    paths = tables(tmp_path, {"a": 4, "b": 4}, "step,acc", "{total},{acc}")
    resumed = tmp_path / "b" / "1.csv"
    header, *rows = resumed.read_text().splitlines()
    resumed.write_text("\n".join([header, *rows[:25], *rows[20:]]))
    runs = load_runs(paths, starts="joined")
    assert analyse_runs(runs, metric="acc:max").comparison("b").no_claim_reason == ""


def test_epochs_that_agree_do_not_hide_steps_that_differ():
    runs = arms(40)
    for run in runs:
        rows, values = run.logged["step"]
        is_mixed = run.config["arm"] == "amp"
        run.logged |= {"epoch": (rows, values / 10), "step": (rows, values * (0.5 if is_mixed else 1.0))}
    assert lengths_in(analyse_runs(runs, metric=NAMED).comparison("amp").no_claim_reason) == ["400", "200"]
    for run in runs:  # twice the batch size halves the steps of equally many epochs
        run.config["batch_size"] = 64 if run.config["arm"] == "amp" else 32
    assert analyse_runs(runs, metric=NAMED).comparison("amp").no_claim_reason == ""
