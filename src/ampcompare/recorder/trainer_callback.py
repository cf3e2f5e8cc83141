"""What the callbacks of all trainers share: a recording that neither ends nor changes the user's training.

Settings of the Recorder that the user gives to a callback are checked before the first step, as everywhere.
From then on, what cannot be recorded is left out with one line. A failure ends the record and not the
training.
"""

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from numbers import Integral
from typing import Any

from torch import Tensor

from ampcompare.errors import describe_exception, describe_type, one_line
from ampcompare.recorder.arguments import find_number
from ampcompare.recorder.gradient_hooks import unwrap_optimizer
from ampcompare.recorder.recorder import Recorder
from ampcompare.recorder.scaler_adapter import is_scaler

log = logging.getLogger(__name__)

MINIMUM = {"batch_size": 1, "seed": 0}  # of whole numbers that trainers have


def keep_training(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a hook of a callback that ends the record, and not the training, if it fails."""

    @wraps(hook)
    def guarded(self: "TrainerCallbackBase", *args: Any, **kwargs: Any) -> None:
        if self.has_failed:
            return
        try:
            hook(self, *args, **kwargs)
        except Exception as problem:  # SystemExit and KeyboardInterrupt are for the user's program
            self.fail(problem)

    return guarded


def add_known(counts: Sequence[int | None]) -> int | None:
    """Return the samples of all batches of a step; None if those of a batch are not known."""
    known = [samples for samples in counts if samples is not None]
    total = sum(known)
    return total if total > 0 and len(known) == len(counts) else None


class TrainerCallbackBase:
    """The record of a trainer's callback.

    Args:
        samples: Counts the samples of a batch; None: the trainer's data loader is asked.
        options: The user's options of the Recorder.

    Attributes:
        record: The open Recorder, None before and after a training.
        has_failed: Whether the record of this training has ended early.
    """

    def __init__(self, samples: Callable[[Any], int] | None, options: Mapping[str, Any]) -> None:
        self.count = samples
        self.options = dict(options)
        self.record: Any = None
        self.has_failed = False
        self._warned: set[str] = set()

    def make_recorder(self, settings: Mapping[str, Any]) -> Recorder:
        """Return a Recorder with the settings of the trainer, as far as the user gave no options.

        A setting of the trainer that the Recorder does not take is left out, since the user did not ask for
        it.

        Raises:
            UserError: An option of the user is invalid.
        """
        self.has_failed = False
        taken = {key: value for key, value in settings.items() if key not in self.options}
        for key, minimum in MINIMUM.items():
            value = taken.get(key)
            if not isinstance(value, Integral) or isinstance(value, bool) or value < minimum:
                taken.pop(key, None)
        if not isinstance(getattr(unwrap_optimizer(taken.get("optimizer")), "param_groups", None), list):
            taken.pop("optimizer", None)
        if taken.get("scaler") is not None and not is_scaler(taken["scaler"]):
            taken["scaler"] = None
        self._leave_out_contradictions(taken)
        recorder = Recorder(**taken | self.options)
        recorder.may_lack_loss = recorder.may_lack_samples = True
        return recorder

    def _leave_out_contradictions(self, taken: dict[str, Any]) -> None:
        """Leave out a setting of the trainer that contradicts the config of the open W&B run."""
        run = self.options.get("run", taken.get("run"))
        known = dict(getattr(run, "config", None) or {})
        for key in MINIMUM:
            if key in taken and key in known and known[key] != taken[key]:
                self.warn_once(
                    key,
                    f"{key}={taken[key]!r} of the trainer is not recorded: "
                    f"the config of the open W&B run has {known[key]!r}",
                )
                del taken[key]

    def evaluate(self, values: Mapping[str, Any]) -> None:
        """Record the numbers among the results of an evaluation; name the others once."""
        numbers: dict[str, float] = {}
        left_out: list[str] = []
        for key, value in values.items():
            number = find_number(value)
            if number is None:
                left_out.append(f"{key} ({describe_type(value)})")
            else:
                numbers[str(key)] = number
        if left_out:
            names = one_line(", ".join(left_out))
            self.warn_once(
                f"evaluation {names}", f"an evaluation is recorded without {names}: only numbers are"
            )
        self.record.evaluate(**numbers)

    def count_samples(self, batch: Any) -> int | None:
        """Return what the user's function counts in a batch; None if that is no number of samples."""
        assert self.count is not None
        try:
            samples: Any = self.count(batch)
            if isinstance(samples, Tensor) and samples.device.type != "cpu":  # would wait for the device
                raise TypeError("expected an int")
            number = operator.index(samples)
            if number < 0:
                raise ValueError(f"{number} samples")
        except Exception as problem:
            reason = one_line(describe_exception(problem))
            self.warn_once("samples", f"throughput is not recorded: samples= failed: {reason}")
            return None
        return number

    def warn_of_samples(self) -> None:
        """Warn once that there is no throughput."""
        self.warn_once(
            "samples",
            "throughput is not recorded: the data loader does not tell how many samples a batch has; "
            "give the callback samples=, a function that returns the number of samples of a batch",
        )

    def warn_once(self, about: str, line: str) -> None:
        """Warn the user, once for each key `about`, in the process that records."""
        if about not in self._warned and not (self.record and self.record.rank):
            self._warned.add(about)
            log.warning(line)

    def fail(self, problem: Exception) -> None:
        """End the record because of a failure; the training continues."""
        self.has_failed = True
        record = self.record
        self.record = None
        outcome = "the record ends here" if record else "this training is not recorded"
        log.error(one_line(f"{outcome}: {describe_exception(problem)}; the training continues"))
        if record:
            with suppress(Exception):
                record.close(problem)
