"""What the report takes from runs that other programs logged, put under the names of our own.

Everything behind this reads one vocabulary (`ampcompare.metrics`): a column `samples_per_sec` of somebody's
runs becomes a column `throughput/images_per_second` beside it, with its unit told. What is taken by guess is
said, and how to take another; what is not there stays away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.precision.backends import REGISTRY
from ampcompare.records import RunRecord
from ampcompare.report.foreign import machine, names
from ampcompare.report.foreign.logged import Logged, guess_memory, guess_rate
from ampcompare.report.foreign.speed import OWN_STEP, Pace, batch_size_of, pace_of, step_words
from ampcompare.report.runs.quantities import Quantities, own_quantities

OURS = (
    metrics.THROUGHPUT,
    metrics.THROUGHPUT_MEDIAN,
    metrics.ELAPSED,
    metrics.TRAIN_SECONDS,
    metrics.PEAK_MEMORY,
)
OF_WHOLE_TIME = ("train_samples_per_second", "train_steps_per_second", "train_tokens_per_second")
LARGEST = 1e100
_ANEW = 1.0  # seconds; rows that W&B wrote in another order than they came fall by less


def are_ours(runs: Sequence[RunRecord]) -> list[bool]:
    """Whether each run was recorded by this program: it names a backend, and logs under our names or says
    what it ran on. One that ended too early for that has the name of a backend of ours, which others use as
    well: it counts only beside runs of ours, or where no run has a row.
    """
    said = [_names_backend(run) and _has_ours(run) for run in runs]
    if not any(said) and any(run.rows for run in runs):
        return said
    return [
        known or (_names_backend(run) and run.option("backend") in REGISTRY and not run.rows)
        for known, run in zip(said, runs, strict=True)
    ]


def _names_backend(run: RunRecord) -> bool:
    backend = run.option("backend")
    return isinstance(backend, str) and bool(backend.strip())


def _has_ours(run: RunRecord) -> bool:
    said = any(key in run.logged or key in run.summary for key in OURS)
    return said or isinstance(run.summary.get(metrics.ENVIRONMENT), dict)


@dataclass
class Taken:
    """The runs under our names, in what units, and what of it has to be said: `picked` what was taken by
    guess, with the option that takes another, `said` how the rest was read, `cautions` why not to trust it
    too far. `originals` are the runs as they were.
    """

    runs: list[RunRecord]
    quantities: Quantities
    originals: Sequence[RunRecord]
    picked: list[tuple[str, str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)


def take(runs: Sequence[RunRecord], throughput: str | None, memory: str | None) -> Taken:
    """Take throughput, memory, energy, steps and clocks from the runs. Of our own runs only what is asked for
    by name is taken. Raises UserError for a key that no run has.
    """
    logged = Logged(runs)
    taken = Taken(list(runs), own_quantities(runs), runs)
    theirs = [n for n, is_own in enumerate(are_ours(runs)) if not is_own]
    for number in theirs:
        taken.runs[number] = _with_clock(runs[number])
    counted = {step_words(runs[number]) for number in theirs}
    if len(theirs) == len(runs) and len(counted) == 1:
        taken.quantities = replace(taken.quantities, step=counted.pop())
    _add_facts(taken.runs, theirs)
    if throughput is not None or theirs:
        _take_speed(taken, logged, throughput, theirs)
    if memory is not None or theirs:
        _take_memory(taken, logged, memory, theirs)
    if theirs:
        _take_energy(taken, theirs)
    if len(theirs) == len(runs):
        taken.quantities = replace(
            taken.quantities, time_from="seconds since the run began, all that it did in them,"
        )
    return taken


def _with_clock(run: RunRecord) -> RunRecord:
    """The run with our names for its step, epoch, loss and clock, where it has these under others."""
    held = run.logged
    pairs = [
        (metrics.STEP, names.first([k for k in names.STEPS if len(run.values(k))], held)),
        (metrics.EPOCH, names.first(names.EPOCHS, held)),
        (metrics.LOSS, names.first(names.LOSSES, held)),
    ]
    added = {ours: run.logged[key] for ours, key in pairs if key is not None and ours not in held}
    if (clock := _clock(run)) is not None:
        clocks = {ours: clock for ours in (metrics.ELAPSED, metrics.TRAIN_SECONDS) if ours not in held}
        run = run.adding(clocks)
    return replace(run, logged=run.logged | added)


def _clock(run: RunRecord) -> np.ndarray | None:
    """Seconds that the run was at work, of each row. W&B's `_runtime` begins anew where a run is resumed
    offline: the parts are added up, without what lies between them.
    """
    runtime, stamps = run.numbers("_runtime"), run.numbers("_timestamp")
    rows = np.flatnonzero(np.isfinite(runtime))
    if not len(rows):
        return stamps - stamps[np.isfinite(stamps)][0] if np.isfinite(stamps).any() else None
    known = runtime[rows]
    gone = np.diff(known)
    gone = np.where(gone < -_ANEW, np.maximum(known[1:], 0.0), np.maximum(gone, 0.0))
    found = np.full(len(runtime), np.nan)
    found[rows] = known[0] + np.concatenate([[0.0], np.cumsum(gone)])
    return found


def _add_facts(runs: list[RunRecord], theirs: Sequence[int]) -> None:
    """Let each run record the machine that W&B saw. Where some have none, and the others had one device, none
    has: a run that died too early to say it would be set apart from its fellows.
    """
    lacking = [n for n in theirs if not isinstance(runs[n].summary.get(metrics.ENVIRONMENT), dict)]
    facts = {n: found for n in lacking if (found := runs[n].machine.facts)}
    devices = {found.get("device_name") for found in facts.values()}
    if len(facts) < len(lacking) and len(devices) < 2:
        return
    for n, found in facts.items():
        runs[n] = replace(runs[n], summary=runs[n].summary | {metrics.ENVIRONMENT: found})


def _take_speed(taken: Taken, logged: Logged, asked: str | None, theirs: Sequence[int]) -> None:
    if asked is not None:
        logged.check("--throughput", asked)
    elif logged.runs_with(metrics.THROUGHPUT) or logged.runs_with(metrics.THROUGHPUT_MEDIAN):
        return
    key = asked or guess_rate(logged)
    if key is None:
        _take_pace(taken, theirs)
        return
    unit, divisor = names.rate_of(key) or ("", 0.0)
    whom = range(len(taken.runs)) if asked is not None else theirs
    for n in whom:
        taken.runs[n] = _renamed(
            taken.runs[n],
            key,
            (metrics.THROUGHPUT, metrics.THROUGHPUT_MEDIAN),
            lambda values: divisor / values if divisor else values,
        )
    lasts = "" if names.says_seconds(key) else " (taken as seconds)"
    how = (
        f"{key}, the duration of a step{lasts}, as {unit}"
        if divisor
        else f"{key} ({unit or 'in its own unit'})"
    )
    taken.quantities = replace(
        taken.quantities, speed=unit or names.last_part(key), speed_from=f"{key}, as the runs logged it"
    )
    if names.last_part(key) in OF_WHOLE_TIME:
        taken.cautions.append(
            f"{key} is Hugging Face's: of the whole time of a training, evaluations and checkpoints in it."
        )
    if asked is None:
        taken.picked.append((f"{how} as the throughput", "--throughput"))
    elif divisor or not unit:
        taken.said.append(f"read {how} as the throughput")


def _take_pace(taken: Taken, theirs: Sequence[int]) -> None:
    """Speed by the moments of rows."""
    paces = {n: pace for n in theirs if (pace := pace_of(taken.originals[n])) is not None}
    if not paces:
        return
    keys = {(pace.step_key, pace.is_epochs) for pace in paces.values()}
    if len(keys) > 1:
        taken.cautions.append(
            "No throughput is logged, and the runs count their steps in several ways: no speed is given."
        )
        return
    ((step_key, is_epochs),) = keys
    if any(pace.is_rows for pace in paces.values()):
        _take_rows(taken, paces)
        return
    sizes = {n: batch_size_of(taken.runs[n]) for n in paces}
    has_sizes = all(sizes.values()) and not is_epochs
    for n, pace in paces.items():
        rates = pace.rates * ((sizes[n] or 1.0) if has_sizes else 1.0)
        taken.runs[n] = taken.runs[n].adding({metrics.THROUGHPUT: rates})
    unit = "samples/s" if has_sizes else "epochs/s" if is_epochs else "steps/s"
    times = " times the batch size of its config" if has_sizes else ""
    counted = "W&B's own step, one for each call of log()" if step_key == OWN_STEP else step_key
    taken.quantities = replace(
        taken.quantities, speed=unit, speed_from=f"{counted}{times}, and the moments of rows"
    )
    taken.cautions.append(
        f"No throughput is logged: speed is taken from the moments at which rows were logged and their steps "
        f"({counted}){times}. {_BESIDE}"
    )


_BESIDE = (
    "What went on between two rows beside training counts as training, and nobody waited for the device. "
    "--throughput KEY takes a logged one."
)


def _take_rows(taken: Taken, paces: dict[int, Pace]) -> None:
    """Rows a second, where no step is logged but W&B's own, one for each call of log(): how many steps a row
    is nobody says. They are comparable only where all runs that finished have as many.
    """
    counts = {pace.rows for n, pace in paces.items() if taken.runs[n].state == "finished"}
    lacks = "No throughput is logged, and no step but W&B's own, one for each call of log()"
    if len(counts) > 1:
        taken.cautions.append(
            f"{lacks}: the runs have {min(counts):,} to {max(counts):,} rows, so that no speed is given. "
            "--throughput KEY takes a logged one."
        )
        return
    for n, pace in paces.items():
        taken.runs[n] = taken.runs[n].adding({metrics.THROUGHPUT: pace.rates})
    taken.quantities = replace(
        taken.quantities, speed="rows/s", speed_from="W&B's own step, and the moments of rows"
    )
    same = f", of which all runs that finished have {counts.pop():,}" if counts else ""
    taken.cautions.append(
        f"{lacks}: speed is taken from the moments of rows, in rows/s{same}. It compares as far as a row is "
        f"as many steps in each. {_BESIDE}"
    )


def _take_memory(taken: Taken, logged: Logged, asked: str | None, theirs: Sequence[int]) -> None:
    if asked is not None:
        logged.check("--memory", asked)
    elif logged.runs_with(metrics.PEAK_MEMORY):
        return
    key = asked or guess_memory(logged)
    if key is None:
        _take_samples(taken, theirs)
        return
    unit, factor = names.memory_of(key) or ("", 1.0)
    for n in range(len(taken.runs)) if asked is not None else theirs:
        taken.runs[n] = _renamed(
            taken.runs[n], key, (metrics.PEAK_MEMORY,) * 2, lambda values: values * factor
        )
    taken.quantities = replace(
        taken.quantities, memory=unit, memory_from=f"the most of {key}, as the runs logged it"
    )
    words = f"{key} ({f'in {unit}, by its name' if unit else 'as it is logged, its unit not known'})"
    if asked is None:
        taken.picked.append((f"{words} as the memory", "--memory"))
    else:
        taken.said.append(f"read {words} as the memory")


def _take_samples(taken: Taken, theirs: Sequence[int]) -> None:
    """Peak memory from W&B's own samples."""
    found = machine.sampled_memory([taken.runs[n] for n in theirs])
    if found is None:
        return
    kind, peaks = found
    for n, peak in zip(theirs, peaks, strict=True):
        if peak is not None:
            run = taken.runs[n]
            taken.runs[n] = replace(run, summary=run.summary | {metrics.PEAK_MEMORY: peak})
    taken.quantities = replace(taken.quantities, memory_from=f"the most of {kind.words}")
    taken.cautions.append(
        f"No memory is logged: the peak is the largest of {kind.words}, one every few seconds, and what lies "
        "between two of them is not seen. --memory KEY takes a logged one."
    )


def _take_energy(taken: Taken, theirs: Sequence[int]) -> None:
    """Energy of one item from W&B's own samples of power, and the throughput."""
    for n in theirs:
        run = taken.runs[n]
        if len(run.values(metrics.ENERGY)) or (watts := machine.watts_of(run)) is None:
            continue
        speeds = run.values(metrics.THROUGHPUT)
        told = run.summary_number(metrics.THROUGHPUT_MEDIAN)
        speed = told if told else float(np.median(speeds)) if len(speeds) else 0.0
        if 0 < speed < LARGEST and run.rows:
            column = np.full(run.rows, np.nan)
            column[-1] = watts / speed
            taken.runs[n] = run.adding({metrics.ENERGY: column})
            source = "the mean power of the GPUs that W&B sampled, over the throughput"
            taken.quantities = replace(taken.quantities, energy_from=source)


def _renamed(run: RunRecord, key: str, ours: tuple[str, str], change: Callable[[Any], Any]) -> RunRecord:
    """The run with the key's values under our names: of its rows, of its summary where no row has any."""
    in_rows, in_summary = ours
    summary = {k: v for k, v in run.summary.items() if k not in ours}
    values = run.numbers(key)
    with np.errstate(all="ignore"):
        if np.isfinite(values).any():
            return replace(run.adding({in_rows: change(values)}), summary=summary)
        told = run.summary_number(key)
        if told is None:
            kept = {name: column for name, column in run.logged.items() if name != in_rows}
            return replace(run, summary=summary, logged=kept)
        return replace(run, summary=summary | {in_summary: float(change(np.float64(told)))})
