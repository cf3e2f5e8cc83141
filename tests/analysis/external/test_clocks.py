"""Times of other programs: of each step or epoch, or from the start, as the user or the format says."""

import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampcompare import analyse_runs, load_runs
from ampcompare.analysis.external.missing_input import MissingInput
from ampcompare.analysis.options import AnalysisOptions
from ampcompare.errors import UserError
from ampcompare.report.options import ReportOptions
from ampcompare.runs import RunRecord

FIRST = {"fp32": 5.0, "amp": 12.0}  # seconds of the first epoch: AMP tunes its kernels in it
EPOCH = {"fp32": 3.55, "amp": 3.9}  # of the others
CLOCK = "time:seconds:cumulative"
Header = dict[str, Any]
ULTRALYTICS: Header = {"epoch": 1, "time": 0.0, "train/box_loss": 1.2, "metrics/mAP50(B)": 0.4, "lr/pg0": 0.1}
OWN: Header = {"epoch": 1, "metrics/mAP50(B)": 0.4, "time": 0.0}


def durations(arm: str, seed: int, epochs: int = 8) -> list[float]:
    """Return the seconds of each epoch."""
    return [FIRST[arm], *(EPOCH[arm] + seed / 1000 + number % 3 / 100 for number in range(epochs - 1))]


def write(path: Path, header: Header, times: list[float]) -> None:
    """Write a CSV file with one row per epoch."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, seconds in enumerate(times):
        row = header | {"epoch": number + 1, "time": f"{seconds:.6g}"}
        rows.append(",".join(map(str, row.values())))
    path.write_text("\n".join([",".join(header), *rows]) + "\n")


def logs(folder: Path, header: Header, name: str = "results.csv", resumed_after: int = 0) -> list[str]:
    """Write a clock of three runs of each arm, which restarts after some epochs."""
    for arm in FIRST:
        for seed in (1, 2, 3):
            seconds = durations(arm, seed)
            if resumed_after:
                seconds[resumed_after] = FIRST[arm] + 1.5
            parts = [seconds[:resumed_after], seconds[resumed_after:]]
            clock = [float(value) for part in parts for value in np.cumsum(part)]
            write(folder / arm / str(seed) / name, header, clock)
    return [f"{arm}={folder / arm}" for arm in FIRST]


def options(**more: Any) -> dict[str, Any]:
    return {"metric": "metrics/mAP50(B):max:fraction", "ignore": ["device"], **more}


def speedup(runs: list[RunRecord], **more: Any) -> float:
    return analyse_runs(runs, **options(**more)).comparison("amp").estimates["speed"].value


def true_speedup() -> float:
    """Return the ratio of the geometric means of the runs' rates in epochs after the first."""
    rates = {arm: [1 / np.median(durations(arm, seed)[1:]) for seed in (1, 2, 3)] for arm in FIRST}
    means = {arm: float(np.exp(np.mean(np.log(values)))) for arm, values in rates.items()}
    return means["amp"] / means["fp32"]


@pytest.mark.parametrize("resumed_after", [0, 4])
def test_ultralytics_declares_that_its_time_counts_from_the_start(tmp_path: Path, resumed_after: int):
    runs = load_runs(logs(tmp_path, ULTRALYTICS, resumed_after=resumed_after))
    assert speedup(runs, time="time:seconds") == pytest.approx(true_speedup(), rel=0.005)
    assert true_speedup() == pytest.approx(0.91, abs=0.005)
    analysis = analyse_runs(runs, **options(time="time:seconds"))
    restart = FIRST["amp"] + 1.5 - durations("amp", 2)[resumed_after] if resumed_after else 0.0
    expected = sum(durations("amp", 2)) + restart
    (amp,) = (group for group in analysis.groups if group.label == "amp")
    assert amp.estimates["train_seconds"].value == pytest.approx(expected, rel=0.002)
    with pytest.raises(
        UserError, match=r"declares time as cumulative.* write --time time:seconds:cumulative"
    ):
        speedup(runs, time="time:seconds:each")


@pytest.mark.parametrize(("header", "name"), [(OWN, "log.csv"), (ULTRALYTICS | {"time": 0}, "run.jsonl")])
def test_a_clock_that_no_format_declares_is_asked_about_with_both_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: Header, name: str
):
    monkeypatch.chdir(tmp_path)
    sources = logs(Path("logs"), header, name, resumed_after=3)
    if name.endswith(".jsonl"):
        for path in Path("logs").rglob(name):
            names, *rows = path.read_text().splitlines()
            pairs = [zip(names.split(","), map(float, row.split(",")), strict=True) for row in rows]
            objects = [dict(sorted(pair, reverse=True)) for pair in pairs]  # the order of another program
            path.write_text("".join(f"{json.dumps(row)}\n" for row in objects))
    asked = AnalysisOptions(**options(time="time:seconds"))
    with pytest.raises(UserError) as caught:
        ReportOptions(sources, analysis=asked).analyse()
    for kind in ("each", "cumulative"):
        assert f"--time time:seconds:{kind} if" in caught.value.lines[1]
    words = shlex.split(caught.value.lines[-1])
    assert words[-2:] == ["--time", "time:seconds:each"]  # it falls, so no clock is proposed
    runs = load_runs(sources)
    assert speedup(runs, time=CLOCK) == pytest.approx(true_speedup(), rel=0.005)


def test_the_kind_is_asked_with_the_other_questions(tmp_path: Path):
    runs = load_runs(logs(tmp_path, OWN, "log.csv"))
    with pytest.raises(MissingInput) as caught:
        analyse_runs(runs, time="time:seconds")
    assert [question.partition(":")[0] for question in caught.value.questions] == ["metric", "time"]
    assert caught.value.arguments[-2:] == ("--time", CLOCK)


def test_fastais_time_is_that_of_an_epoch(tmp_path: Path):
    for arm, seconds in (("fp32", 75), ("amp", 50)):
        for seed in (1, 2, 3):
            path = tmp_path / arm / str(seed) / "history.csv"
            path.parent.mkdir(parents=True)
            rows = [f"{n},1.0,0.9,0.{70 + n + seed},0:0{(seconds + n) // 60}:{(seconds + n) % 60:02d}"
                    for n in range(3)]  # fmt: skip
            path.write_text("\n".join(["epoch,train_loss,valid_loss,accuracy,time", *rows]) + "\n")
    runs = load_runs([f"{arm}={tmp_path / arm}" for arm in FIRST])
    named = {"metric": "accuracy:max:fraction", "ignore": ["device"], "time": "time:seconds"}
    analysis = analyse_runs(runs, **named)
    assert analysis.comparison("amp").estimates["speed"].value == pytest.approx(76 / 51)
    with pytest.raises(UserError, match="declares time as each"):
        analyse_runs(runs, **named | {"time": CLOCK})


def test_mmengines_time_is_that_of_an_iteration(tmp_path: Path):
    for arm, seconds in (("fp32", 0.4), ("amp", 0.3)):
        for seed in (1, 2, 3):
            path = tmp_path / arm / str(seed) / "20260101_101010" / "vis_data" / "scalars.json"
            path.parent.mkdir(parents=True)
            rows = [
                {"lr": 0.1, "data_time": 0.01, "loss": 1 / step, "time": seconds + seed / 1e4, "step": step}
                for step in (10, 20, 30)
            ]
            rows.append({"accuracy/top1": 70 + seed, "step": 1})
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    runs = load_runs([f"{arm}={tmp_path / arm}" for arm in FIRST])
    named = {"metric": "accuracy/top1:max:percent", "ignore": ["device"], "time": "time:seconds"}
    assert analyse_runs(runs, **named).comparison("amp").estimates["speed"].value == pytest.approx(
        4 / 3, rel=1e-3
    )


@pytest.mark.parametrize(
    ("kind", "times", "message"),
    [
        ("cumulative", [40.1, 40.0, 40.3, 40.2, 40.1], "fall in two rows one after the other"),
        ("cumulative", [9.0, 7.0, 5.0], "write --time time:seconds:each"),
        ("cumulative", [3.0, -1.0, 4.0], "values below 0"),
        ("each", [3.0, -1.0, 4.0], "values below 0"),
        ("each", [1.7e9, 1.7e9 + 3], "dates in seconds since 1970"),
        ("each", [40.1, 40.0, 40.3, 40.2, 40.1], ""),
        ("each", [10.0, 14.0, 19.0, 25.0], ""),  # epochs with larger and larger images
        ("cumulative", [40.0, 80.0, 120.0, 80.0, 120.0, 160.0], ""),  # it was resumed
        ("cumulative", [10.0, 20.0, 10.0, 20.0, 11.0, 20.0], ""),  # each epoch begins at 0
    ],
)
def test_a_kind_that_the_values_contradict_is_refused(
    tmp_path: Path, kind: str, times: list[float], message: str
):
    for arm in FIRST:
        for seed in (1, 2):
            write(tmp_path / arm / f"{seed}.csv", OWN, [value * (1 + seed / 1e3) for value in times])
    runs = load_runs([f"{arm}={tmp_path / arm}" for arm in FIRST])
    if message:
        with pytest.raises(UserError, match=message):
            analyse_runs(runs, **options(time=f"time:seconds:{kind}"))
        return
    analysis = analyse_runs(runs, **options(time=f"time:seconds:{kind}"))
    grows = kind == "each" and times == sorted(times)
    assert any("grows from row to row" in line for line in analysis.caveats) == grows
    falls = kind == "cumulative"  # a contradiction is refused; the others were started again
    assert any("time falls in 4 runs, read as new starts" in line for line in analysis.caveats) == falls
    if kind == "cumulative":
        by_hand = times[0] + sum(b if b < a else b - a for a, b in itertools.pairwise(times))
        seconds = analysis.groups[0].estimates["train_seconds"].value
        assert seconds == pytest.approx(by_hand, rel=0.002)


@pytest.mark.parametrize("kind", ["", ":each"])
def test_durations_are_in_seconds_whatever_their_unit(tmp_path: Path, kind: str):
    (tmp_path / "log.csv").write_text("epoch,acc,time\n1,0.5,250 ms\n2,0.6,1m 3s\n")
    with pytest.raises(UserError, match=f"durations, read as seconds; write time:seconds{kind}$"):
        analyse_runs(load_runs([f"a={tmp_path}"]), metric="acc:max", time=f"time:ms{kind}")
