"""What is wrong with a training, as its rows tell: each thing is said once."""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ampcompare import metrics
from ampcompare.train.errors import TrainingError

log = logging.getLogger(__name__)

Row = dict[str, Any]
SKIPS_IN_A_ROW = 20
FLOOR = 1.0  # a loss scale below it has collapsed
AT_FIRST = "look at inputs, targets and initial weights"  # of a loss that begins so


class Troubles:
    """Found so far; each is a warning.

    `on_nan`: what a loss comes to that is not finite and that no loss scale can mend. "stop" raises
    TrainingError, "continue" warns, as in `training.on_nan`; None warns in the loop of somebody else.
    `dynamic`: whether an overflow is expected now and then and mended by a smaller scale; `restores`: whether
    buffers that a skipped step spoiled are put back.
    """

    def __init__(
        self,
        on_nan: str | None,
        *,
        dynamic: bool,
        restores: bool,
    ) -> None:
        self._on_nan, self._dynamic, self._restores = on_nan, dynamic, restores
        # Plain values, as a checkpoint keeps them.
        self._found: Row = {"in_a_row": 0, "collapsed_at": None, "spoiled_at": None, "said_buffers": False}
        self._overflowed: Counter[str] = Counter()

    def judge(
        self, row: Row, losses: Sequence[float], skips: Sequence[float], overflows: Sequence[Row]
    ) -> None:
        """Look at the row of these steps: the loss of each, 1 for those that were skipped, and for some of
        these a row that names the module.
        """
        step, steps, scale = row[metrics.STEP], len(skips), row[metrics.SCALE]
        bad = [place for place, loss in enumerate(losses) if not math.isfinite(loss)]
        first = step - steps + bad[0] + 1 if bad else step
        is_mended = self._dynamic and scale > 1
        if first == 1 and bad and is_mended:
            log.warning(f"step 1: the training loss is not finite (loss scale {scale:g}); {AT_FIRST}")
        if self._dynamic:
            self._judge_scale(row, skips)
        buffers = row.get(metrics.NONFINITE_BUFFERS, 0)
        if buffers and not self._found["said_buffers"]:
            # Where BatchNorm sees inf or nan, so does the loss of the step.
            self._found |= {"said_buffers": True, "spoiled_at": first if bad else None}
            self._say_buffers(f"{'' if bad else 'by '}step {first}", buffers)
        for overflow in overflows:
            number, module = overflow[metrics.STEP], overflow[metrics.NONFINITE_MODULE]
            if module not in self._overflowed:
                also = "; the loss was not finite either, so the forward overflowed"
                log.warning(
                    f"step {number} was skipped: {module} is the last module whose gradient is inf or nan"
                    f"{also * (number - step + steps - 1 in bad)}"
                )
            self._overflowed[module] += 1
        if bad and not is_mended:
            what = f"step {first}: the training loss is not finite (loss scale {scale:g})"
            self._judge_loss(what, AT_FIRST if first == 1 else "")

    def _judge_loss(self, what: str, cause: str) -> None:
        """Stop or warn. The `cause` is what to look at; where none is told it is what the training does to a
        network.
        """
        if self._on_nan == "stop":
            advice = cause or "try a smaller optimizer.lr or training.clip_norm"
            raise TrainingError(f"{what}; {advice}, or go on with training.on_nan=continue")
        chosen = f" (training.on_nan={self._on_nan})" if self._on_nan else ""
        log.warning(f"{what}; {cause and cause + '; '}going on{chosen}")

    def _judge_scale(self, row: Row, skips: Sequence[float]) -> None:
        """Say that the scale has collapsed: gradients overflow whatever it is, and nothing is learnt."""
        step, scale = row[metrics.STEP], row[metrics.SCALE]
        at, longest = (step, 0) if scale < FLOOR else (None, 0)
        in_a_row = self._found["in_a_row"]
        for number, is_skip in enumerate(skips, step - len(skips) + 1):
            in_a_row = in_a_row + 1 if is_skip else 0
            longest = max(longest, in_a_row)
            if at is None and in_a_row >= SKIPS_IN_A_ROW:
                at = number
        self._found["in_a_row"] = in_a_row
        if at is None or self._found["collapsed_at"] is not None:
            return
        self._found["collapsed_at"] = at
        what = f"fell to {scale:g}" if scale < FLOOR else f"overflowed {longest} steps in a row"
        said = f"step {at}: the loss scale {what} ({row[metrics.SKIPPED]} steps skipped so far)"
        todo = "Try a smaller learning rate, clipping by norm, or bf16, which needs no loss scale"
        log.warning(f"{said}; gradients overflow whatever the scale. {todo}")

    def _say_buffers(self, when: str, count: int) -> None:
        what, restore = f"{when}: {count} of the model's buffers", "training.on_nonfinite_buffers=restore"
        if self._restores:
            how = "of a forward that overflowed were put back to those from before the step"
            log.warning(f"{what} {how} ({restore})")
        else:
            how = "are no longer finite, as a forward overflowed: to skip a step does not mend them"
            uses = "every evaluation from here on uses them"
            todo = f"Put back a copy of them after a skipped step ({restore} does)"
            log.warning(f"{what} (BatchNorm's running statistics) {how}, and {uses}. {todo}")

    def summary(self, *, has_buffers: bool) -> Row:
        """What was found, for the summary of a run."""
        spoiled_at = self._found["spoiled_at"]
        found: Row = {metrics.SCALE_COLLAPSED: self._found["collapsed_at"]} if self._dynamic else {}
        if spoiled_at is not None or (has_buffers and self._dynamic):
            found[metrics.NONFINITE_AT] = spoiled_at
        if self._overflowed:
            often = self._overflowed.most_common()
            found[metrics.NONFINITE_MODULES] = ", ".join(f"{module} ({count})" for module, count in often)
        return found

    def state_dict(self) -> Row:
        """Plain values."""
        return self._found | {"overflowed": dict(self._overflowed)}

    def load_state_dict(self, state: Row) -> None:
        """Go on from a state of `state_dict`."""
        self._found = {key: state[key] for key in self._found}
        self._overflowed = Counter(state["overflowed"])
