"""What a sweep can decide about quality, and what it costs: said before its first run and after it."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from ampcompare import metrics
from ampcompare.analysis.analysis import analyse_runs
from ampcompare.analysis.bench_file import BenchFile
from ampcompare.analysis.comparison import pool_spreads
from ampcompare.analysis.grouping.compared_metric import ACCURACY_MARGIN, is_accuracy_name
from ampcompare.analysis.grouping.run_metrics import QUALITY, SCORE
from ampcompare.analysis.grouping.validity_checks import describe_flat_loss, explain_chance
from ampcompare.analysis.statistics.mean_difference import MIN_RUNS
from ampcompare.analysis.statistics.multiplicity import joint_level
from ampcompare.analysis.statistics.sample_size import MAX_SEEDS, largest_deviation, seeds_to_clear
from ampcompare.analysis.sweep_plan import LookPlan
from ampcompare.config.schema import Config
from ampcompare.data.sources import SOURCES
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord, load_runs
from ampcompare.runs.nested import lookup
from ampcompare.runtime.console import print_line
from ampcompare.runtime.formatting import number, plural, rough_duration
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.prepare import PreparedSweep
from ampcompare.sweeps.sweep import SEED, baseline_of

BOTH_SIDES = 2  # "the same" has a limit on either side of no difference
# Rows and columns of the table of seeds, as multiples of the margin.
TABLE_DEVIATIONS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.2, 2.0)
TABLE_MARGINS = (0.5, 1.0, 2.0)
# Options that decide how far two runs of one setting differ. Earlier records count if they agree in them.
RECIPE_OPTIONS = (
    *(
        "model.name",
        "data.source",
        "data.train_limit",
        "data.test_limit",
        "batch_size",
        "epochs",
        "max_steps",
    ),
    *("optimizer.name", "optimizer.lr", "optimizer.momentum", "optimizer.weight_decay", "schedule.name"),
)


@dataclass(frozen=True)
class DecisionPlan:
    """The design of a sweep that compares the quality of several groups with a baseline.

    Attributes:
        looks: Numbers of seeds at which the runs are compared.
        shares: The fraction of the error for each look.
        groups: Number of groups that are compared with the baseline.
        runs_per_seed: Number of runs of each seed, the baseline's and a control's included.
        margin: The largest loss that counts as none, in the shown unit. None: no margin is set.
        unit: The unit of the margin.
        train_samples: Number of training samples, None if it is not known yet.
        config: The options of the first run; None for another program.
    """

    looks: tuple[int, ...]
    shares: tuple[float, ...]
    groups: int
    runs_per_seed: int
    margin: float | None
    unit: str
    train_samples: int | None
    config: Config | None

    @property
    def has_intervals(self) -> bool:
        """Return whether the last look has enough seeds for a confidence interval."""
        return self.looks[-1] >= MIN_RUNS

    def level(self, look: int) -> float:
        """Return the level of the intervals at a look, by its position."""
        return joint_level(self.groups, share=self.shares[look])

    def largest_deviation(self, look: int) -> float:
        """Return the largest standard deviation of a pair that a look decides in 9 of 10 comparisons."""
        assert self.margin is not None
        return largest_deviation(self.margin, self.looks[look], self.level(look), BOTH_SIDES)


def make_decision_plan(prepared: PreparedSweep) -> DecisionPlan | None:
    """Return the design of a sweep; None if it does not compare groups over seeds."""
    sweep = prepared.sweep
    if not sweep.is_grid or sweep.seed is None or sweep.compared is None or sweep.run_cap is not None:
        return None
    total = sweep.total()
    if not total or sweep.seeds < 1:
        return None
    own_points = [point for point in sweep.points if point.arm is None]
    compared, settings = sweep.compared, [p for p in sweep.parameters if p.key != SEED]
    baseline = compared.grid_value(baseline_of(compared))
    beside = [point for point in own_points if lookup(point.parameters, compared.key) != baseline]
    groups = {
        json.dumps([lookup(point.parameters, p.key) for p in settings], default=str) for point in beside
    }
    if not groups:
        return None
    config = prepared.config
    is_accuracy = sweep.metric is None or is_accuracy_name(sweep.metric.name)
    default = ACCURACY_MARGIN if is_accuracy and prepared.trains_here else None
    looks, shares = _looks_and_shares(prepared)
    return DecisionPlan(
        looks=looks,
        shares=shares,
        groups=len(groups),
        runs_per_seed=math.ceil(total / sweep.seeds),
        margin=prepared.plan.margin or default,
        unit="points" if is_accuracy else "",
        train_samples=_train_samples(config) if config else None,
        config=config,
    )


def _looks_and_shares(prepared: PreparedSweep) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the numbers of seeds at which this sweep is compared, and the fraction of the error for each."""
    if prepared.looks:
        equal = tuple(1 / len(prepared.looks) for _ in prepared.looks)
        return prepared.looks, prepared.shares or equal
    seeds, planned = prepared.sweep.seeds, tuple(prepared.plan.looks or ())
    if len(planned) < 2:
        return (seeds,), (1.0,)
    shares = tuple(prepared.plan.shares or (1 / len(planned) for _ in planned))
    return (seeds,), (LookPlan(planned, shares).share_at(seeds),)


def describe_decision_plan(prepared: PreparedSweep, bench: str | None = None) -> list[str]:
    """Return what a sweep costs and what it can decide, one line each; nothing for a search.

    Args:
        bench: A file of `ampcompare bench --json`, for the time of a run.

    Raises:
        UserError: The file cannot be read.
    """
    plan = make_decision_plan(prepared)
    if plan is None:
        return []
    records = _earlier_records(prepared.output, plan.config)
    seconds = None if bench is None else _seconds_by_bench(plan, bench)
    source = f"training alone, from {bench}"
    has_time = seconds is not None
    elapsed = [took for record in records if (took := _elapsed(record)) is not None]
    if not has_time and elapsed:
        seconds = fmean(elapsed)
        source = f"from {plural(len(elapsed), 'earlier run')}, without the start of a process"
    lines = [_describe_cost(plan, seconds, source)]
    if bench is not None and not has_time:
        lines.append(
            f"{bench} gives no time: it is of other data or another program, or it has no number of training "
            "samples; write it again with the data of the sweep: ampcompare bench --json FILE"
        )
    lines += _describe_unplanned_look(prepared, plan)
    if plan.margin is None:
        return [
            *lines,
            "no margin is set: the report can only show higher or lower; plan.margin=X sets the largest "
            "difference that counts as none, in the unit of the metric",
        ]
    if not plan.has_intervals:
        seeds = plural(plan.looks[-1], "seed")
        return [
            *lines,
            f"with {seeds}, nothing is decided: a confidence interval needs at least {MIN_RUNS} seeds; "
            f"add seeds: seed={','.join(map(str, range(1, MIN_RUNS + 1)))}",
        ]
    lines.append(_describe_resolution(plan))
    deviation = _recorded_deviation(records)
    if deviation is not None:
        lines.append(_describe_expectation(plan, deviation))
    return lines


def _describe_unplanned_look(prepared: PreparedSweep, plan: DecisionPlan) -> list[str]:
    """Return that the sweep ends at another number of seeds than at one of several planned looks."""
    planned = prepared.plan.looks or []
    (seeds, *_), (share, *_) = plan.looks, plan.shares
    if prepared.looks or len(planned) < 2 or seeds in planned:
        return []
    return [
        f"plan.looks={planned} has no look at {plural(seeds, 'seed')}: the report then takes the smallest "
        f"share of the error, {100 * share:.3g}%; to compare at {seeds} as well, add it to plan.looks"
    ]


def describe_first_run(
    prepared: PreparedSweep, folder: Path, run: SweepRun, process_seconds: float | None = None
) -> list[str]:
    """Return what the first finished run tells of the others: time, and whether it learned.

    Args:
        folder: Its output folder.
        run: The first run that finished.
        process_seconds: Time from the start of its process to its end; None if it is not known.
    """
    plan = make_decision_plan(prepared)
    record = _read_record(folder, run.run_id)
    if plan is None or record is None:
        return []
    lines = []
    training_seconds = _elapsed(record)
    if process_seconds is not None:
        seconds = _seconds_with_start(process_seconds, training_seconds, prepared.sweep.seeds_per_process)
        lines.append(_describe_cost(plan, seconds, "as the first run took"))
    elif training_seconds is not None:
        source = "as the first run took without the start of its process"
        lines.append(_describe_cost(plan, training_seconds, source))
    return [*lines, *_describe_learning(record)]


def _seconds_with_start(
    process_seconds: float, training_seconds: float | None, runs_per_process: int
) -> float:
    """Return the mean time of a run in seconds, with its part of the start of its process.

    Args:
        process_seconds: Time from the start of a process to the end of its first run.
        training_seconds: Recorded time of that run; None if it is not recorded.
        runs_per_process: Number of runs that share the start of a process.
    """
    if training_seconds is None or training_seconds > process_seconds:
        return process_seconds
    return training_seconds + (process_seconds - training_seconds) / runs_per_process


def _describe_learning(record: RunRecord) -> list[str]:
    """Return that a run has not learned, by the rule of the report, or that its loss hardly moved."""
    try:
        analysis = analyse_runs([record])
    except UserError:  # a run of another program may need options of the report
        return []
    metric, group = analysis.metric, analysis.groups[0]
    lines = []
    if why := explain_chance(group):
        lines.append(
            f"{metric.title} of the first run is {metric.show_value(float(group.rows[SCORE].iloc[0]))}, "
            f"{why}: runs like this decide nothing about it. Ctrl-C stops the sweep; change optimizer.lr, "
            "recipe or epochs"
        )
    if flat := describe_flat_loss(group):
        lines.append(
            f"the training loss of the first run hardly moved: {flat}; check optimizer.lr and recipe"
        )
    return lines


def print_plan(prepared: PreparedSweep, console: Console, bench: str | None = None) -> None:
    """Print what a sweep costs and can decide, with a table of seeds by standard deviation and margin."""
    lines = describe_decision_plan(prepared, bench)
    plan = make_decision_plan(prepared)
    if plan is None:
        print_line(
            console, f"{prepared.sweep.name}: a search compares no groups over seeds, so it decides nothing"
        )
        return
    for line in lines:
        print_line(console, line)
    if plan.margin is None:
        return
    level = plan.level(len(plan.looks) - 1)
    unit = f" {plan.unit}" if plan.unit else ""
    groups = plural(plan.groups, "group")
    print_line(console, f"Seeds that decide 9 of 10 comparisons of {groups} with equal quality:")
    table = Table()
    table.add_column(f"Standard deviation of paired differences,{unit}".rstrip(","), justify="right")
    margins = [plan.margin * multiple for multiple in TABLE_MARGINS]
    for margin in margins:
        table.add_column(f"margin {margin:g}", justify="right")
    for deviation in (plan.margin * multiple for multiple in TABLE_DEVIATIONS):
        cells = [seeds_to_clear([margin] * BOTH_SIDES, deviation, level) for margin in margins]
        table.add_row(f"{deviation:g}", *(f"{n}" if n else f"over {MAX_SEEDS:,}" for n in cells))
    console.print(table)


def _describe_cost(plan: DecisionPlan, seconds: float | None, source: str) -> str:
    """Return `5 seeds x 3 backends: 15 runs, about 2.5 h (600 s a run, from bench.json)`."""
    parts = []
    for look in plan.looks:
        runs = look * plan.runs_per_seed
        time = "" if seconds is None else f", about {rough_duration(runs * seconds)}"
        parts.append(f"{plural(look, 'seed')}: {plural(runs, 'run')}{time}")
    text = "; at most ".join(parts)
    if seconds is None:
        return f"{text}; the first run shows how long the others take"
    return f"{text} one after the other ({rough_duration(seconds)} a run, {source})"


def _describe_resolution(plan: DecisionPlan) -> str:
    """Return up to which standard deviation the seeds decide."""
    limit = plan.largest_deviation(len(plan.looks) - 1)
    design = f"with {plural(plan.looks[-1], 'seed')} and {plural(plan.groups, 'group')} beside the baseline"
    if not limit:
        return f"{design}: almost nothing can be decided; use more seeds or compare fewer groups"
    deviation = number(limit, 2)
    margin = f"{number(plan.margin, 2)} {plan.unit}".rstrip()
    return (
        f"{design}: decided within {margin} in 9 of 10 comparisons if paired differences have a standard "
        f"deviation of at most {deviation}"
    )


def _describe_expectation(plan: DecisionPlan, deviation: float) -> str:
    """Return the expected standard deviation, and what it takes if the seeds are too few for it."""
    assert plan.margin is not None
    text = f"expected standard deviation: {number(deviation, 2)} (measured in earlier runs of this recipe)"
    look = len(plan.looks) - 1
    if deviation <= plan.largest_deviation(look):
        return f"{text}: enough seeds"
    needed = seeds_to_clear([plan.margin] * BOTH_SIDES, deviation, plan.level(look))
    return f"{text}: a decision takes {f'about {needed}' if needed else f'more than {MAX_SEEDS:,}'} seeds"


def _seconds_by_bench(plan: DecisionPlan, file: str) -> float | None:
    """Return the mean training time of a run in seconds by a benchmark; None if it does not tell.

    The size of a built-in data set is known, that of other data is in the file.

    Raises:
        UserError: The file cannot be read.
    """
    measured = BenchFile.read(file)
    rates = [arm.images_per_second for arm in measured.arms if arm.images_per_second]
    train_samples = plan.train_samples or measured.train_samples
    data = (measured.fingerprint or {}).get("data")
    config = plan.config
    if config is None or not rates or not train_samples:
        return None
    if plan.train_samples is None and data != config.data.source:
        return None
    samples = min(train_samples, config.data.train_limit or train_samples) * config.epochs
    if config.max_steps is not None:
        step = config.batch_size * config.training.accumulate
        samples = min(samples, config.max_steps * step)
    return fmean(samples / rate for rate in rates)


def _read_record(folder: Path, run_id: str) -> RunRecord | None:
    """Return the record of a run; None if it left none that can be read."""
    try:
        return next((record for record in load_runs([str(folder)]) if record.id == run_id), None)
    except UserError:
        return None


def _earlier_records(folder: Path, config: Config | None) -> list[RunRecord]:
    """Return the finished runs of the same recipe in the output folder; none if there is nothing to read."""
    if config is None or not (folder / "wandb").is_dir():
        return []
    try:
        records = load_runs([str(folder)])
    except UserError:
        return []
    # Where no batch size is given, a DataLoader may have decided it.
    keys = [key for key in RECIPE_OPTIONS if key != "batch_size" or key not in config.not_given]
    expected = {key: config.value(key) for key in keys}
    return [
        record
        for record in records
        if record.exit_code == 0 and all(record.option(key) == value for key, value in expected.items())
    ]


def _recorded_deviation(records: Sequence[RunRecord]) -> float | None:
    """Return the standard deviation of paired differences in earlier records, pooled over groups."""
    if not records:
        return None
    try:
        analysis = analyse_runs(records)
    except UserError:
        return None
    spread = pool_spreads(analysis.comparisons).get(QUALITY)
    return spread[0] if spread else None


def _elapsed(record: RunRecord) -> float | None:
    """Return how long a run took in seconds; None if it does not say."""
    values = record.values(metrics.ELAPSED)
    return float(values.max()) if len(values) else None


def _train_samples(config: Config) -> int | None:
    """Return the number of training samples of a built-in data source; None if only the data tells."""
    source = SOURCES.get(config.data.source)
    if source is None or not source.train_images:
        return None
    return min(source.train_images, config.data.train_limit or source.train_images)
