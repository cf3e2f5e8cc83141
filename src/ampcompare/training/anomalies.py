"""Warnings about a training, from its rows: losses that are not finite, a loss scale that collapses."""

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ampcompare import metrics
from ampcompare.errors import TrainingError

log = logging.getLogger(__name__)

Row = dict[str, Any]
MAX_SKIPS_IN_A_ROW = 20
SETTLED_STEPS = 10  # steps without a skip after which the loss scale has settled
MIN_LOSS_SCALE = 1.0  # a loss scale below it has collapsed
FIRST_STEP_ADVICE = "check the data for NaN, the loss function and the initial weights"
INITIAL_WEIGHTS_ADVICE = "check the initial weights; in fp16, a weight above 65,504 is infinite"
ADVICE = "try a smaller optimizer.lr or training.clip_norm"
WEIGHTS_ADVICE = (
    "try a smaller optimizer.lr, training.clip_norm, or a backend with fp32 weights (in fp16, Adam's eps "
    "rounds to 0)"
)


class NonFiniteLossError(TrainingError):
    """The training loss is NaN or infinite, and the run has to stop.

    Attributes:
        problem: Which step and which value, such as `step 2: the training loss is NaN (loss scale 1)`.
        is_first_step: Whether the weights had not been updated yet.
        bad_weights: What is known of weights that were not finite before the step, "" if nothing.
    """

    def __init__(self, problem: str, *, is_first_step: bool, bad_weights: str = "") -> None:
        self.problem, self.is_first_step, self.bad_weights = problem, is_first_step, bad_weights
        super().__init__(self.explain())

    def explain(self, nonfinite_data: str = "", checked: str = "") -> str:
        """Return the message.

        Args:
            nonfinite_data: What the data contain, such as `the training inputs contain NaN`; "" if nothing.
            checked: The part of the data that was found to be finite; "" if none was checked.
        """
        advice = FIRST_STEP_ADVICE if self.is_first_step else ADVICE
        if self.bad_weights:  # looked at first: they explain the loss, whatever the data contain
            cause = f"; {self.bad_weights}"
            advice = INITIAL_WEIGHTS_ADVICE if self.is_first_step else WEIGHTS_ADVICE
        elif nonfinite_data:
            cause, advice = f"; {nonfinite_data}", "remove or replace these values"
        elif checked:
            cause = f"; {checked} have neither NaN nor infinite values"
            if self.is_first_step:  # the learning rate has had no effect yet
                advice = "check the range of the inputs, the loss function and the initial weights"
        else:
            cause = ""
        return f"{self.problem}{cause}; {advice}, or continue with training.on_nan=continue"


class AnomalyMonitor:
    """Checks each row of a training and warns once about each kind of anomaly.

    Args:
        on_nan: What to do about a loss that is not finite and that no smaller loss scale can repair. "stop"
            raises TrainingError and "continue" warns, as in `training.on_nan`. None warns in a loop that is
            not ours.
        scales_dynamically: Whether overflows are expected now and then, and repaired by a smaller scale.
        restores_buffers: Whether buffers that a skipped step spoiled are restored.

    Attributes:
        first_anomaly: The first step of this process with a loss that no smaller loss scale can repair, or
            that was skipped after the loss scale had settled; None without such a step.
    """

    def __init__(self, on_nan: str | None, *, scales_dynamically: bool, restores_buffers: bool) -> None:
        self._on_nan = on_nan
        self._scales_dynamically, self._restores_buffers = scales_dynamically, restores_buffers
        # Plain values: a checkpoint has them under these keys.
        self._state: Row = {"in_a_row": 0, "collapsed_at": None, "spoiled_at": None, "said_buffers": False}
        self._overflows_by_module: Counter[str] = Counter()
        self._bad_weights = ""  # which weights were found not to be finite first
        self.first_anomaly: int | None = None
        self._last_skip = 0

    def check(
        self,
        row: Row,
        losses: Sequence[float],
        skips: Sequence[float],
        overflows: Sequence[Row],
        bad_weights: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """Check the row of an interval.

        Args:
            row: The row; its step is the last one of the interval.
            losses: The loss of each step, or nothing where no step has one.
            skips: 1 for each step that was skipped, else 0.
            overflows: Rows that name the module where a skipped step overflowed.
            bad_weights: For each step before which weights were found not to be finite: their module.

        Raises:
            TrainingError: A loss is not finite, and the training is to stop.
        """
        step, steps, scale = row[metrics.STEP], len(skips), row[metrics.SCALE]
        bad = [position for position, loss in enumerate(losses) if not math.isfinite(loss)]
        first_bad = step - steps + bad[0] + 1 if bad else step
        scale_can_shrink = self._scales_dynamically and scale > MIN_LOSS_SCALE
        self._note_anomaly(step - steps + 1, skips, first_bad if bad and not scale_can_shrink else None)
        if bad_weights and not self._bad_weights:
            number = min(bad_weights)
            self._bad_weights = _describe_bad_weights(number, bad_weights[number])
            if scale_can_shrink or self._on_nan != "stop":
                advice = INITIAL_WEIGHTS_ADVICE if number == 1 else WEIGHTS_ADVICE
                log.warning(f"{self._bad_weights}; {advice}")
        if first_bad == 1 and bad and scale_can_shrink:
            what = f"step 1: the training loss is {_name(losses[bad[0]])} (loss scale {scale:g})"
            log.warning(f"{what}; {FIRST_STEP_ADVICE}")
        if self._scales_dynamically:
            self._check_scale(row, skips)
        buffers = row.get(metrics.NONFINITE_BUFFERS, 0)
        if buffers and not self._state["said_buffers"]:
            # Where BatchNorm sees inf or nan, so does the loss of the step.
            self._state |= {"said_buffers": True, "spoiled_at": first_bad if bad else None}
            self._warn_about_buffers(f"{'' if bad else 'by '}step {first_bad}", buffers)
        for overflow in overflows:
            number, module = overflow[metrics.STEP], overflow[metrics.NONFINITE_MODULE]
            if module not in self._overflows_by_module:
                warning = (
                    f"step {number} was skipped: {module} is the last module whose gradient is inf or nan"
                )
                if number in bad_weights:
                    warning += ", because weights were inf or nan before the step"
                elif number - step + steps - 1 in bad:
                    warning += "; the loss was inf or nan too, so the forward pass overflowed"
                log.warning(warning)
            self._overflows_by_module[module] += 1
        if bad and not scale_can_shrink:
            what = f"step {first_bad}: the training loss is {_name(losses[bad[0]])} (loss scale {scale:g})"
            cause = self._bad_weights if first_bad in bad_weights else ""
            self._stop_or_warn(what, is_first_step=first_bad == 1, bad_weights=cause)

    def _note_anomaly(self, first_step: int, skips: Sequence[float], first_bad: int | None) -> None:
        """Note the first anomaly of an interval, which begins with this step, if there was none before."""
        found = [first_bad] if first_bad is not None else []
        for number, is_skip in enumerate(skips, first_step):
            if is_skip:
                if number - self._last_skip > SETTLED_STEPS:
                    found.append(number)
                self._last_skip = number
        if found and self.first_anomaly is None:
            self.first_anomaly = min(found)

    def _stop_or_warn(self, what: str, *, is_first_step: bool, bad_weights: str) -> None:
        if self._on_nan == "stop":
            raise NonFiniteLossError(what, is_first_step=is_first_step, bad_weights=bad_weights)
        option = f" (training.on_nan={self._on_nan})" if self._on_nan else ""
        advice = f"{FIRST_STEP_ADVICE}; " if is_first_step else ""
        log.warning(f"{what}; {advice}the training continues{option}")

    def _check_scale(self, row: Row, skips: Sequence[float]) -> None:
        """Warn once if gradients overflow whatever the loss scale is, so that nothing is learned."""
        step, scale = row[metrics.STEP], row[metrics.SCALE]
        at, longest = (step, 0) if scale < MIN_LOSS_SCALE else (None, 0)
        in_a_row = self._state["in_a_row"]
        for number, is_skip in enumerate(skips, step - len(skips) + 1):
            in_a_row = in_a_row + 1 if is_skip else 0
            longest = max(longest, in_a_row)
            if at is None and in_a_row >= MAX_SKIPS_IN_A_ROW:
                at = number
        self._state["in_a_row"] = in_a_row
        if at is None or self._state["collapsed_at"] is not None:
            return
        self._state["collapsed_at"] = at
        what = f"fell to {scale:g}" if scale < MIN_LOSS_SCALE else f"overflowed {longest} steps in a row"
        warning = f"step {at}: the loss scale {what} ({row[metrics.SKIPPED]} steps skipped so far)"
        advice = (
            "Try a smaller optimizer.lr, training.clip_norm, or a bf16 backend, which needs no loss scale"
        )
        if self._bad_weights:
            log.warning(f"{warning}; {self._bad_weights}")
        else:
            log.warning(f"{warning}; gradients overflow at every loss scale. {advice}")

    def _warn_about_buffers(self, when: str, count: int) -> None:
        what, restore = f"{when}: {count} of the model's buffers", "training.on_nonfinite_buffers=restore"
        cause = "weights are inf or nan" if self._bad_weights else "a forward pass overflowed"
        if self._restores_buffers:
            how = f"were restored to their values before the step, because {cause}"
            log.warning(f"{what} {how} ({restore})")
        else:
            how = f"are inf or nan, because {cause}; skipping the step does not repair them"
            effect = "every evaluation from now on uses them"
            advice = f"{restore} restores them after a skipped step"
            log.warning(f"{what} (BatchNorm's running statistics) {how}; {effect}. {advice}")

    def summary(self, *, has_buffers: bool) -> Row:
        """Return the anomalies for the summary of a run, by metric key."""
        spoiled_at = self._state["spoiled_at"]
        summary: Row = (
            {metrics.SCALE_COLLAPSED: self._state["collapsed_at"]} if self._scales_dynamically else {}
        )
        if spoiled_at is not None or (has_buffers and self._scales_dynamically):
            summary[metrics.NONFINITE_AT] = spoiled_at
        if self._overflows_by_module:
            modules = self._overflows_by_module.most_common()
            summary[metrics.NONFINITE_MODULES] = ", ".join(f"{name} ({count})" for name, count in modules)
        return summary

    def state_dict(self) -> Row:
        """Return plain values for a checkpoint."""
        return self._state | {"overflowed": dict(self._overflows_by_module)}

    def load_state_dict(self, state: Row) -> None:
        """Continue from a state of `state_dict`."""
        self._state = {key: state[key] for key in self._state}
        self._overflows_by_module = Counter(state["overflowed"])


def _describe_bad_weights(step: int, module: str) -> str:
    """Return which weights were not finite before a step, and what made them so."""
    if step == 1:
        return f"the initial weights of {module} are inf or nan"
    return (
        f"the weights of {module} were inf or nan before step {step}: not the forward pass of this step, but "
        "an earlier update of the optimizer made them so"
    )


def _name(loss: float) -> str:
    return "NaN" if math.isnan(loss) else "infinite"
