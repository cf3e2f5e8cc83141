"""Warnings about a training, from its rows: losses that are not finite, a loss scale that collapses."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ampcompare import metrics
from ampcompare.errors import TrainingError

log = logging.getLogger(__name__)

Row = dict[str, Any]
MAX_SKIPS_IN_A_ROW = 20
SETTLED_STEPS = 10  # steps without a skip after which the loss scale has settled
MIN_LOSS_SCALE = 1.0  # a loss scale below it has collapsed
# What to try, by what is known of the cause.
WHERE = "`ampcompare why diff` with the options of this run shows where"
FIRST_STEP_ADVICE = (
    f"no update came before, so check the data for NaN, the loss function and the initial weights; {WHERE}"
)
FINITE_DATA_ADVICE = (
    "no update came before, so check the range of the inputs, the loss function and the initial weights; "
    f"{WHERE}"
)
INITIAL_WEIGHTS_ADVICE = "check the initial weights; in fp16, a weight above 65,504 is infinite"
ADVICE = "try a smaller optimizer.lr or training.clip_norm"
WEIGHTS_ADVICE = (
    "try a smaller optimizer.lr, training.clip_norm, or a backend with fp32 weights; in fp16 weights, the "
    "default eps of adam and adamw is 0: set optimizer.eps=1e-4"
)


class NonFiniteLossError(TrainingError):
    """The training loss is NaN or infinite, and the run has to stop.

    Attributes:
        problem: Which step and which value, such as `step 2: the training loss is NaN (loss scale 1)`.
        is_first_step: Whether the weights had not been updated yet: every earlier step was skipped.
        bad_weights: What is known of weights that were not finite before the step, "" if nothing.
    """

    def __init__(self, problem: str, *, is_first_step: bool, bad_weights: str = "") -> None:
        self.problem = problem
        self.is_first_step = is_first_step
        self.bad_weights = bad_weights
        super().__init__(self.explain())

    def explain(self, nonfinite_data: str = "", checked: str = "") -> str:
        """Return the message.

        Args:
            nonfinite_data: What the data contain, such as `the training inputs contain NaN`; "" if nothing.
            checked: The part of the data that was found to be finite; "" if none was checked.
        """
        advice = FIRST_STEP_ADVICE if self.is_first_step else ADVICE
        explanation = advice
        if self.bad_weights:  # looked at first: they explain the loss, whatever the data contain
            advice = INITIAL_WEIGHTS_ADVICE if self.is_first_step else WEIGHTS_ADVICE
            explanation = f"{self.bad_weights}; {advice}"
        elif nonfinite_data:
            explanation = f"{nonfinite_data}; remove or replace these values"
        elif checked:
            if self.is_first_step:
                advice = FINITE_DATA_ADVICE
            explanation = f"{checked} have neither NaN nor infinite values; {advice}"
        return f"{self.problem}; {explanation}, or continue with training.on_nan=continue"


class AnomalyMonitor:
    """Checks each row of a training and warns once about each kind of anomaly.

    Args:
        on_nan: What to do about a loss that is not finite and that no smaller loss scale can repair. "stop"
            raises TrainingError and "continue" warns, as in `training.on_nan`. None warns in a loop that is
            not ours.
        scales_dynamically: Whether overflows are expected now and then, and repaired by a smaller scale.
        start: The steps taken before. The loss scale may have to settle again after them.
        on_first: Gets the summary's entry of the first anomaly as soon as it is found: a killed run has no
            end at which it could be recorded.
    """

    def __init__(
        self,
        on_nan: str | None,
        *,
        scales_dynamically: bool,
        start: int = 0,
        on_first: Callable[[Row], None] = lambda entry: None,
    ) -> None:
        self._on_nan = on_nan
        self._scales_dynamically = scales_dynamically
        self._on_first = on_first
        # Plain values: a checkpoint has them under these keys.
        self._state: Row = {"in_a_row": 0, "collapsed_at": None, "spoiled_at": None, "said_buffers": False}
        self._state |= {"first_anomaly": None, "last_skip": start}
        self._overflows_by_module: Counter[str] = Counter()
        self._has_advised = False  # about a loss before any update
        self._bad_weights = ""  # which weights were found not to be finite first

    @property
    def first_anomaly(self) -> int | None:
        """The first step of the run with a loss or an update that is inf or nan, or that was skipped.

        Steps are left out whose overflow a smaller loss scale may still repair, and those that were skipped
        before the loss scale had settled.
        """
        anomaly: int | None = self._state["first_anomaly"]
        return anomaly

    def check(
        self,
        row: Row,
        losses: Sequence[float],
        skips: Sequence[bool],
        overflows: Sequence[Row],
        bad_weights: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """Check the row of an interval.

        Args:
            row: The row; its step is the last one of the interval.
            losses: The loss of each step, or nothing where no step has one.
            skips: For each step whether it is known to have been skipped.
            overflows: Rows that name the module where a skipped step overflowed.
            bad_weights: For each step before which weights were found not to be finite: their module.

        Raises:
            TrainingError: A loss is not finite, and the training is to stop.
        """
        first_step = row[metrics.STEP] - len(skips) + 1
        scale = row[metrics.SCALE]
        scale_can_shrink = self._scales_dynamically and scale > MIN_LOSS_SCALE
        finds_scale = scale_can_shrink and self.first_anomaly is None
        bad_losses = {step: x for step, x in enumerate(losses, first_step) if not math.isfinite(x)}
        first_bad = min(bad_losses, default=None)
        loss_is_lost = first_bad is not None and not scale_can_shrink
        spoiled = first_bad
        if first_bad is not None and first_bad > 1 and first_bad in bad_weights:
            spoiled = first_bad - 1  # the update before made the weights inf or nan
        self._note_anomaly(first_step, skips, spoiled if loss_is_lost else None)
        self._check_weights(bad_weights, stops=self._on_nan == "stop" and not scale_can_shrink)
        if first_bad == 1 and scale_can_shrink:
            log.warning(f"{_describe_loss(1, bad_losses[1], scale)}; {FIRST_STEP_ADVICE}")
            self._has_advised = True
        if self._scales_dynamically:
            self._check_scale(row, skips)
        self._check_buffers(row, first_bad)
        for overflow in overflows:
            finds_scale &= self.first_anomaly is None or overflow[metrics.STEP] < self.first_anomaly
            self._report_overflow(overflow, bad_losses, bad_weights, finds_scale=finds_scale)
        if first_bad is not None and loss_is_lost:
            problem = _describe_loss(first_bad, bad_losses[first_bad], scale)
            cause = self._bad_weights if first_bad in bad_weights else ""
            skipped = row.get(metrics.SKIPPED, 0) - sum(skips[first_bad - first_step :])
            self._stop_or_warn(problem, is_first_step=skipped == first_bad - 1, bad_weights=cause)

    def _note_anomaly(self, first_step: int, skips: Sequence[bool], first_bad: int | None) -> None:
        """Note the first anomaly of an interval, which begins with this step, if there was none before."""
        found = [first_bad] if first_bad is not None else []
        for number, is_skip in enumerate(skips, first_step):
            if is_skip:
                if number - self._state["last_skip"] > SETTLED_STEPS:
                    found.append(number)
                self._state["last_skip"] = number
        if found and self.first_anomaly is None:
            self._state["first_anomaly"] = min(found)
            self._on_first({metrics.FIRST_ANOMALY: min(found)})

    def _check_weights(self, bad_weights: Mapping[int, str], *, stops: bool) -> None:
        """Note the first weights that were not finite, and warn, unless the run stops with this message."""
        if not bad_weights or self._bad_weights:
            return
        step = min(bad_weights)
        self._bad_weights = _describe_bad_weights(step, bad_weights[step])
        if not stops:
            advice = INITIAL_WEIGHTS_ADVICE if step == 1 else WEIGHTS_ADVICE
            log.warning(f"{self._bad_weights}; {advice}")

    def _check_scale(self, row: Row, skips: Sequence[bool]) -> None:
        """Warn once if gradients overflow whatever the loss scale is, so that nothing is learned."""
        step = row[metrics.STEP]
        scale = row[metrics.SCALE]
        has_fallen = scale < MIN_LOSS_SCALE
        collapsed_at = step if has_fallen else None
        longest = 0
        in_a_row = self._state["in_a_row"]
        for number, is_skip in enumerate(skips, step - len(skips) + 1):
            in_a_row = in_a_row + 1 if is_skip else 0
            longest = max(longest, in_a_row)
            if collapsed_at is None and in_a_row >= MAX_SKIPS_IN_A_ROW:
                collapsed_at = number
        self._state["in_a_row"] = in_a_row
        if collapsed_at is None or self._state["collapsed_at"] is not None:
            return
        self._state["collapsed_at"] = collapsed_at
        event = f"fell to {scale:g}" if has_fallen else f"overflowed {longest} steps in a row"
        skipped = row[metrics.SKIPPED]
        cause = self._bad_weights or (
            "gradients overflow at every loss scale. Try a smaller optimizer.lr, training.clip_norm, "
            "or a bf16 backend, which needs no loss scale"
        )
        if not self._bad_weights and skipped == step:
            cause = f"gradients overflow at every loss scale, and {FIRST_STEP_ADVICE}"
        so_far = "" if math.isnan(skipped) else f" ({skipped} steps skipped so far)"
        log.warning(f"step {collapsed_at}: the loss scale {event}{so_far}; {cause}")

    def _check_buffers(self, row: Row, first_bad: int | None) -> None:
        """Warn once about buffers that are not finite.

        Args:
            first_bad: The first step whose loss was not finite: where BatchNorm sees inf or nan, so does the
                loss. None: not known.
        """
        count = row.get(metrics.NONFINITE_BUFFERS, 0)
        if not count or self._state["said_buffers"]:
            return
        self._state |= {"said_buffers": True, "spoiled_at": first_bad}
        when = f"by step {row[metrics.STEP]}" if first_bad is None else f"step {first_bad}"
        cause = "weights are inf or nan" if self._bad_weights else "a forward pass overflowed"
        log.warning(
            f"{when}: {count} of the model's buffers (such as running statistics) are inf or nan, "
            f"because {cause}; skipping the step does not repair them; "
            "every evaluation from now on uses them"
        )

    def _report_overflow(
        self,
        overflow: Row,
        bad_losses: Mapping[int, float],
        bad_weights: Mapping[int, str],
        *,
        finds_scale: bool,
    ) -> None:
        """Count the overflow of a skipped step, and warn about the first one of each module.

        Args:
            finds_scale: Whether the loss scale had not settled before the step, and can still shrink.
        """
        step = overflow[metrics.STEP]
        module = overflow[metrics.NONFINITE_MODULE]
        self._overflows_by_module[module] += 1
        if self._overflows_by_module[module] > 1:
            return
        cause = ""
        if step in bad_weights:
            cause = ", because weights were inf or nan before the step"
        elif step in bad_losses:
            cause = "; the loss was inf or nan too, so the forward pass overflowed"
        elif finds_scale:
            cause = "; this is no fault while the loss scaler finds its first scale"
        log.warning(
            f"step {step} was skipped: {module} is the last module whose gradient is inf or nan{cause}"
        )

    def _stop_or_warn(self, problem: str, *, is_first_step: bool, bad_weights: str) -> None:
        if self._on_nan == "stop":
            raise NonFiniteLossError(problem, is_first_step=is_first_step, bad_weights=bad_weights)
        option = f" (training.on_nan={self._on_nan})" if self._on_nan else ""
        advice = f"{FIRST_STEP_ADVICE}; " if is_first_step and not self._has_advised else ""
        self._has_advised = self._has_advised or is_first_step
        log.warning(f"{problem}; {advice}the training continues{option}")

    def summary(self, *, has_buffers: bool) -> Row:
        """Return the anomalies for the summary of a run, by metric key."""
        spoiled_at = self._state["spoiled_at"]
        summary: Row = {}
        if self.first_anomaly is not None:
            summary[metrics.FIRST_ANOMALY] = self.first_anomaly
        if self._scales_dynamically:
            summary[metrics.SCALE_COLLAPSED] = self._state["collapsed_at"]
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
        self._state = {key: state.get(key, first) for key, first in self._state.items()}
        self._overflows_by_module = Counter(state["overflowed"])


def _describe_bad_weights(step: int, module: str) -> str:
    """Return which weights were not finite before a step, and what made them so."""
    if step == 1:
        return f"the initial weights of {module} are inf or nan"
    return (
        f"the weights of {module} were inf or nan before step {step}: not the forward pass of this step, but "
        "an earlier update of the optimizer made them so"
    )


def _describe_loss(step: int, loss: float, scale: float) -> str:
    value = "NaN" if math.isnan(loss) else "infinite"
    return f"step {step}: the training loss is {value} (loss scale {scale:g})"
