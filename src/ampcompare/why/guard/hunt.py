"""From a plain trial to the modules that have to stay in fp32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ampcompare.why.guard.modules import Network
from ampcompare.why.guard.search import minimal
from ampcompare.why.guard.trials import Kept, Trial, Trials

WHOLE = "*"


@dataclass
class Hunt:
    """The search in trials. `margin` is how much of the baseline's loss a trial's may lie above it; `say`
    takes a line for each trial.
    """

    trials: Trials
    network: Network
    margin: float
    say: Callable[[str], None]
    frame: list[Trial] = field(default_factory=list)  # fp32, plain, and those with all kept
    asked: list[tuple[Kept, Trial]] = field(default_factory=list)  # in search

    def begin(self) -> tuple[Trial, Trial]:
        """The baseline and the plain backend."""
        baseline = self.trials.baseline()
        self.frame.append(baseline)
        self.say(f"fp32: loss {baseline.loss:.4g}")
        (plain,) = self._outside([()], "nothing kept")
        return baseline, plain

    def cures(self, trial: Trial) -> bool:
        """Whether it trained, and its loss is finite and at most the margin above the baseline's."""
        base = self.frame[0].loss
        return trial.trained and math.isfinite(trial.loss) and trial.loss <= base + self.margin * abs(base)

    def find(self) -> list[str] | None:
        """A smallest set of modules that cures when kept; None where keeping all of the network does not.

        Of the modules that call no other. Where all of these are not enough (what overflows is then between
        them, in the forward of one that calls them), of those above: the parts of the network, and within
        each one that is needed its own parts, as far down as that is enough.
        """
        work = list(self.network.work)
        (everything,) = self._outside([tuple(work)], f"all {len(work)} modules kept")
        if self.cures(everything):
            return self._among(work, ())
        (whole,) = self._outside([(WHOLE,)], "the whole network kept")
        return self._within("", ()) if self.cures(whole) else None

    def _among(self, names: Sequence[str], beside: Kept) -> list[str]:
        def ask(sets: list[Kept]) -> list[bool]:
            wanted = [(*beside, *one) for one in sets]
            ended = self.trials.of(wanted)
            for one, trial in zip(wanted, ended, strict=True):
                self.asked.append((one, trial))
                self.say(f"{_some(one)} kept: loss {trial.loss:.4g}{self._mark(trial)}")
            return [self.cures(trial) for trial in ended]

        return minimal(names, ask, at_once=self.trials.workers)

    def _within(self, name: str, beside: Kept) -> list[str]:
        """What has to be kept of a module that is known to be needed, `beside` kept besides."""
        parts = list(self.network.parts(name))
        here = [name or WHOLE]
        if not parts:
            return here
        (trial,) = self._outside(
            [(*beside, *parts)], f"the {len(parts)} parts of {name or 'the network'} kept"
        )
        if not self.cures(trial):
            return here
        found = self._among(parts, beside) if parts[1:] else parts
        for part in list(found):
            others = tuple(n for n in found if n != part)
            place = found.index(part)
            found[place : place + 1] = self._within(part, (*beside, *others))
        return found

    def _outside(self, sets: list[Kept], what: str) -> list[Trial]:
        """Trials that are none of the bisection."""
        ended = self.trials.of(sets)
        for trial in ended:
            self.frame.append(trial)
            self.say(f"{what}: loss {trial.loss:.4g}{self._mark(trial)}")
        return ended

    def _mark(self, trial: Trial) -> str:
        if trial.failed:
            return f", failed (see {self.trials.folder / 'logs'})"
        if not trial.trained:
            return ", each step skipped"
        return ", within the margin" if self.cures(trial) else ""


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} modules ({names[0]} to {names[-1]})"
