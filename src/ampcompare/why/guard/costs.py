"""What keeping modules in fp32 costs a step, from the records of trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ampcompare.why.guard.trials import Kept, Trial, Trials

MOST = 8  # modules that are each tried alone
ENOUGH = 20  # steps that were timed, below which a median says little


@dataclass(frozen=True)
class Cost:
    """What a trial with modules kept has over the plain one: a step's median time in ms, peak memory in MiB;
    None where one of them did not measure it. `spread_ms` is how far apart a trial's own steps are (95th
    percentile less median): a difference below it says nothing.
    """

    kept: Kept
    ms: float | None
    mib: float | None
    spread_ms: float | None
    plain_ms: float | None
    plain_mib: float | None

    @property
    def is_told(self) -> bool:
        """Whether the time is more than the spread of the steps."""
        return self.ms is not None and self.spread_ms is not None and abs(self.ms) > self.spread_ms


def cost_of(kept: Kept, trial: Trial, plain: Trial) -> Cost:
    """That of one trial."""
    spreads = [_less(one.slow_ms, one.step_ms) for one in (trial, plain)]
    known = [spread for spread in spreads if spread is not None]
    return Cost(
        kept,
        _less(trial.step_ms, plain.step_ms),
        _less(trial.peak_mib, plain.peak_mib),
        max(known) if len(known) == 2 else None,
        plain.step_ms,
        plain.peak_mib,
    )


def _less(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def costs(trials: Trials, found: Sequence[str]) -> list[Cost]:
    """Of all that were found together, and of each alone where there are several but not many: a trial each,
    in one sweep.
    """
    alone: list[Kept] = [(name,) for name in found] if 1 < len(found) <= MOST else []
    sets = [tuple(found), *alone]
    plain = trials.of([()])[0]
    return [cost_of(kept, trial, plain) for kept, trial in zip(sets, trials.of(sets), strict=True)]


def doubts(steps: int, workers: int, on_host: bool, measured: Sequence[Cost]) -> list[str]:
    """What makes times and memory say less than they seem to. Of a trial so many `steps` were timed."""
    found = []
    if steps < ENOUGH:
        found.append(f"{steps} steps were timed in each trial: too few to tell times apart; --steps has more")
    if workers > 1:
        found.append(f"up to {workers} trials ran side by side: their times are of that, too; --workers 1")
    if measured and all(cost.ms is None for cost in measured):
        found.append("no step was timed: the trials are too short")
    elif not any(cost.is_told for cost in measured):
        found.append("each difference in time is within the spread of a trial's own steps")
    if measured and all(cost.mib is None for cost in measured):
        found.append("no peak of memory was measured on this device")
    elif on_host:
        found.append("memory is that of the whole process on this device, PyTorch and all")
    return found
