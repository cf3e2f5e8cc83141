"""The Recorder as a callback of Lightning (`lightning` or `pytorch_lightning`).

Use it as `Trainer(callbacks=[RecorderCallback()])`.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from ampcompare.errors import UserError
from ampcompare.recorder.recorder import Recorder

PREFIX = re.compile(r"val(?:id(?:ation)?)?[_/]")
OLD, NEW = "pytorch_lightning", "lightning.pytorch"
try:
    library: Any = import_module(OLD if OLD in sys.modules and NEW not in sys.modules else NEW)
    count = import_module(f"{library.__name__}.utilities.data").extract_batch_size
except ImportError:
    raise UserError(
        "ampcompare.recorder.lightning: Lightning is not installed; install it with: pip install lightning"
    ) from None


class RecorderCallback(library.Callback):
    """Record `Trainer.fit`.

    Every metric that the validation logs is recorded as `eval/NAME`.

    Args:
        names: Maps the validation's metrics to their names in the record; metrics that are not in it are left
            out. By default a metric keeps its name without a prefix `val_`, `valid_`, `validation_` (or with
            `/`), and `acc` becomes `accuracy`.
        samples: Counts the samples of a batch. Lightning's own count by default.
        **options: Options of the Recorder. What they leave out is taken from the trainer: backend (its
            precision), loss scale, optimizer, model, the seed of `seed_everything`, an open W&B run.
    """

    def __init__(
        self, names: Mapping[str, str] | None = None, samples: Callable[[Any], int] = count, **options: Any
    ) -> None:
        self._names, self._count, self._options = names, samples, options
        self.record: Any = None
        self._steps_before: int | None = None  # from a checkpoint
        self._recorded: int | None = None  # by a record that has ended
        self._before: dict[str, Any] = {}  # metrics as they were before a validation

    def state_dict(self) -> dict[str, Any]:
        """Return the number of recorded steps for a checkpoint; Lightning counts optimizer calls instead."""
        return {"steps": self.record.steps if self.record else self._recorded}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the number of recorded steps from a checkpoint."""
        self._steps_before = state_dict.get("steps")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the record with the trainer's settings."""
        seed = os.environ.get("PL_GLOBAL_SEED", "")
        settings: dict[str, Any] = {"backend": str(trainer.precision), "seed": int(seed) if seed else None}
        settings |= {"model": pl_module, "optimizer": next(iter(trainer.optimizers), None)}
        settings |= {"scaler": getattr(trainer.precision_plugin, "scaler", None)}
        settings |= {"batch_size": getattr(trainer.train_dataloader, "batch_size", None)}
        settings |= {"run": getattr(sys.modules.get("wandb"), "run", None)}
        before = trainer.global_step if self._steps_before is None else self._steps_before
        settings |= {"start_step": before}
        self.record = Recorder(**settings | self._options).begin()
        self.record.may_lack_loss = True  # `training_step` may return None to leave a batch out
        self._step, self._samples, self._loss = trainer.global_step, 0, None

    def on_train_batch_start(self, *_: Any) -> None:
        """Count training time again after a validation, and mark the first batch of a step as loaded."""
        if self.record.is_paused:
            self.record.resume()
        if not self._samples:
            self.record.mark_batch_ready()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, at: int) -> None:
        """Add a micro-batch; after the last one of a step, record the step."""
        self._samples += self._count(batch)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:
            self._loss = (
                loss if self._loss is None else self._loss + loss
            )  # Lightning divided each by their number
        if trainer.global_step != self._step:
            epoch = trainer.current_epoch + (at + 1) / trainer.num_training_batches
            self.record.step(loss=self._loss, samples=self._samples, epoch=epoch)
            self._step, self._samples, self._loss = trainer.global_step, 0, None

    def on_validation_start(self, trainer: Any, *_: Any) -> None:
        """Pause the training time."""
        if self.record:  # none while the sanity check runs
            self.record.pause()
            self._before = dict(trainer.callback_metrics)

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        """Record the metrics of the validation."""
        if self.record:
            # The trainer keeps the training's metrics in the same dict. The validation puts in new objects.
            now, before = trainer.callback_metrics, self._before
            new = {key: value for key, value in now.items() if value is not before.get(key)}
            names = name_metrics(new) if self._names is None else self._names
            self.record.evaluate(**{names[key]: new[key] for key in new if names.get(key)})

    def on_save_checkpoint(self, *_: Any) -> None:
        """Pause the training time."""
        if self.record:
            self.record.pause()

    def on_train_end(self, trainer: Any, pl_module: Any, problem: BaseException | None = None) -> None:
        """End the record."""
        if self.record:
            self._recorded = self.record.steps
            self.record.close(problem)
        self.record = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the record as failed, or as stopped by Lightning's exception for SIGTERM."""
        is_sigterm = "SIGTERM" in type(exception).__name__  # Lightning's own has no code
        self.on_train_end(trainer, pl_module, SystemExit(143) if is_sigterm else exception)


def name_metrics(keys: Iterable[str]) -> dict[str, str]:
    """Return the names of the validation's metrics in the record: without a prefix such as `val_`.

    >>> name_metrics(["val_acc", "f1", "val_f1"])
    {'val_acc': 'accuracy', 'f1': 'f1', 'val_f1': 'val_f1'}
    """
    names: dict[str, str] = {}
    for key in keys:
        short = PREFIX.sub("", key, count=1) or key
        short = "accuracy" if short == "acc" else short
        names[key] = key if short in names.values() else short
    return names
