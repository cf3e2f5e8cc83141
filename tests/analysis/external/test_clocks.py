"""Times of other programs: of each step or epoch, or from the start, as the user or the format says."""

import itertools
import shlex
from pathlib import Path
from typing import Any

import pytest
from support.log_templates import FIRST, PROGRAMS, SEEDS, write, write_logs

from ampcompare import analyse_runs, load_runs
from ampcompare.analysis.options import AnalysisOptions
from ampcompare.errors import UserError
from ampcompare.report.options import ReportOptions

EPOCH = {"fp32": 3.55, "amp": 3.9}  # seconds of an epoch after the first
TRUTH = 3.55 / 3.9
CLOCK = "time:seconds:cumulative"
METRIC = "metrics/mAP50(B)"
CSV = "epoch,{METRIC},time\n{epoch},0.4{seed},{time}\n"
ULTRALYTICS = "epoch,time,train/box_loss,{METRIC},lr/pg0\n{epoch},{time},1.2,0.4{seed},0.1\n"
LINES = '{{"train/box_loss": 1.2, "time": {time}, "{METRIC}": 0.4{seed}, "lr/pg0": 0.1, "epoch": {epoch}}}\n'


def clock(arm: str, resumed_after: int = 0) -> list[float]:
    """Return a clock of eight epochs, which restarts after some."""
    seconds = [FIRST[arm], *[EPOCH[arm]] * 7]
    if resumed_after:
        seconds[resumed_after] = FIRST[arm]
    parts = seconds[:resumed_after], seconds[resumed_after:]
    return [value for part in parts for value in itertools.accumulate(part)]


def logs(name: str, template: str, times: dict[str, list[float]]) -> list[str]:
    """Write the logs of three runs of each arm with these times of an epoch, and return the sources."""
    *header, row = template.splitlines(keepends=True)
    for arm, seed in itertools.product(times, SEEDS):
        rows = [
            row.format(epoch=n, time=time * (1 + seed / 1e4), seed=seed, METRIC=METRIC)
            for n, time in enumerate(times[arm], 1)
        ]
        write(f"{arm}/{seed}/{name}", "".join([*(line.format(METRIC=METRIC) for line in header), *rows]))
    return [f"{arm}={arm}" for arm in times]


def options(**more: Any) -> dict[str, Any]:
    return {"metric": f"{METRIC}:max:fraction", "ignore": ["device"], **more}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("resumed_after", [0, 4])
def test_ultralytics_declares_that_its_time_counts_from_the_start(resumed_after: int):
    times = {arm: clock(arm, resumed_after) for arm in FIRST}
    runs = load_runs(logs("results.csv", ULTRALYTICS, times))
    analysis = analyse_runs(runs, **options(time="time:seconds"))
    assert analysis.comparison("amp").estimates["speed"].value == pytest.approx(TRUTH, rel=0.005)
    amp = analysis.comparison("amp").group
    seconds = 12 + 7 * 3.9 + (12 - 3.9 if resumed_after else 0)
    assert amp.estimates["train_seconds"].value == pytest.approx(seconds, rel=0.002)
    refusal = r"declares time as cumulative.* write --time time:seconds:cumulative"
    with pytest.raises(UserError, match=refusal):
        analyse_runs(runs, **options(time="time:seconds:each"))


def test_a_clock_that_no_format_declares_is_asked_about_with_both_commands():
    sources = logs("run.jsonl", LINES, {arm: clock(arm, resumed_after=3) for arm in FIRST})
    with pytest.raises(UserError) as caught:
        ReportOptions(sources, analysis=AnalysisOptions(**options(time="time:seconds"))).analyse()
    for kind in ("each", "cumulative"):
        assert f"--time time:seconds:{kind} if" in caught.value.lines[1]
    words = shlex.split(caught.value.lines[-1])
    assert words[-2:] == ["--time", "time:seconds:each"]  # it falls, so no clock is proposed
    analysis = analyse_runs(load_runs(sources), **options(time=CLOCK))
    assert analysis.comparison("amp").estimates["speed"].value == pytest.approx(TRUTH, rel=0.005)


@pytest.mark.parametrize(("program", "metric"), [("fastai", "accuracy"), ("mmengine", "accuracy/top1")])
def test_a_format_declares_the_time_of_an_epoch_or_iteration(program: str, metric: str):
    runs = load_runs(write_logs(PROGRAMS[program]))
    with pytest.raises(UserError, match="declares time as each"):
        analyse_runs(runs, metric=f"{metric}:max", time=CLOCK, where=["time:lr"] * (program == "mmengine"))


@pytest.mark.parametrize(
    ("kind", "times", "message"),
    [
        ("cumulative", [40.1, 40.0, 40.3, 40.2, 40.1], "fall in two rows one after the other"),
        ("each", [3.0, -1.0, 4.0], "values below 0"),
        (
            "each",
            [1.7e9, 1.7e9 + 3],
            r"--time 'time:seconds:each': .*dates in seconds since 1970.*:cumulative",
        ),
        ("each", [40.1, 40.0, 40.3, 40.2, 40.1], ""),
        ("each", [10.0, 14.0, 19.0, 25.0], ""),  # epochs with larger and larger images
        ("cumulative", [10.0, 20.0, 10.0, 20.0, 11.0, 20.0], ""),  # each epoch begins at 0
    ],
)
def test_a_kind_that_the_values_contradict_is_refused(kind: str, times: list[float], message: str):
    runs = load_runs(logs("log.csv", CSV, dict.fromkeys(FIRST, times)))
    if message:
        with pytest.raises(UserError, match=message):
            analyse_runs(runs, **options(time=f"time:seconds:{kind}"))
        return
    analysis = analyse_runs(runs, **options(time=f"time:seconds:{kind}"))
    grows = kind == "each" and times == sorted(times)
    assert any("grows from row to row" in line for line in analysis.caveats) == grows
    falls = kind == "cumulative"  # a contradiction is refused; the others were started again
    assert any("time falls in" in line and "read as new starts" in line for line in analysis.caveats) == falls
    if kind == "cumulative":
        by_hand = times[0] + sum(b if b < a else b - a for a, b in itertools.pairwise(times))
        seconds = analysis.groups[0].estimates["train_seconds"].value
        assert seconds == pytest.approx(by_hand, rel=0.002)


def test_a_date_counts_from_the_first_row():
    begin, unit, a_second = 1.7e12, "ms", 1000
    for arm, seconds in (("a", 2), ("b", 1)):
        for seed in SEEDS:
            rows = [f"{n},0.{seed}{n},{begin + a_second * (1000 * seed + n * seconds):.1f}" for n in range(9)]
            write(f"{arm}/{seed}.csv", "\n".join(["step,acc,time", *rows]))
    time = f"time:{unit}:cumulative"
    analysis = analyse_runs(load_runs(["a=a", "b=b"]), metric="acc:max", time=time, ignore=["device"])
    assert analysis.comparison("b").estimates["speed"].value == pytest.approx(2.0)
    assert analysis.quantities.speed == "steps/s"
    assert analysis.groups[0].estimates["train_seconds"].value == pytest.approx(16, abs=3)


def test_durations_are_in_seconds_whatever_their_unit(tmp_path: Path):
    (tmp_path / "log.csv").write_text("epoch,acc,time\n1,0.5,250 ms\n2,0.6,1m 3s\n")
    with pytest.raises(UserError, match="durations, read as seconds; write time:seconds:each"):
        analyse_runs(load_runs([f"a={tmp_path}"]), metric="acc:max", time="time:ms:each")
