"""The Recorder as a callback of Lightning (`lightning` or `pytorch_lightning`).

Use it as `Trainer(callbacks=[RecorderCallback()])`.
"""

import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ampcompare.errors import UserError
from ampcompare.recorder.arguments import find_number
from ampcompare.recorder.batch_size import count_batch_samples
from ampcompare.recorder.recorder import Recorder
from ampcompare.recorder.trainer_callback import TrainerCallbackBase, add_known, keep_training

PREFIX = re.compile(r"val(?:id(?:ation)?)?[_/]")
OLD = "pytorch_lightning"
NEW = "lightning.pytorch"
uses_old = OLD in sys.modules and NEW not in sys.modules
try:
    library: Any = import_module(OLD if uses_old else NEW)
except ImportError:
    raise UserError(
        "ampcompare.recorder.lightning: Lightning is not installed; install it with: pip install lightning"
    ) from None


class RecorderCallback(TrainerCallbackBase, library.Callback):
    """Record `Trainer.fit`.

    Every metric that the validation logs is recorded as `eval/NAME`. What cannot be recorded is left out with
    one line; the callback never ends the training. In manual optimization, a step of several batches is
    recorded without a loss, since the module may or may not have divided it by the number of batches.

    Args:
        names: Maps the validation's metrics to their names in the record; metrics that are not in it are left
            out. By default a metric keeps its name without a prefix `val_`, `valid_`, `validation_` (or with
            `/`), and `acc` becomes `accuracy`.
        samples: Counts the samples of a batch. By default the DataLoader determines them: its batch size, and
            the rest of the data set in the last batch. Where it does not (an iterable data set, a batch
            sampler of your own), no throughput is recorded.
        **options: Options of the Recorder. What they leave out is taken from the trainer: backend (its
            precision), loss scale, optimizer, model, the seed of `seed_everything`, an open W&B run.
    """

    def __init__(
        self,
        names: Mapping[str, str] | None = None,
        samples: Callable[[Any], int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(samples, options)
        self._names = names
        self._steps_before: int | None = None  # from a checkpoint
        self._recorded: int | None = None  # by a record that has ended
        self._before: dict[str, Any] = {}  # metrics as they were before a validation
        self._batches: list[tuple[int | None, Any]] = []  # samples and loss of each batch of the step

    def state_dict(self) -> dict[str, Any]:
        """Return the number of recorded steps for a checkpoint; Lightning counts optimizer calls instead."""
        return {"steps": self.record.steps if self.record else self._recorded}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the number of recorded steps from a checkpoint."""
        self._steps_before = state_dict.get("steps")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the record with the trainer's settings."""
        seed = os.environ.get("PL_GLOBAL_SEED", "")
        settings = {
            "backend": str(trainer.precision),
            "seed": int(seed) if seed else None,
            "batch_size": getattr(trainer.train_dataloader, "batch_size", None),
            "scaler": getattr(trainer.precision_plugin, "scaler", None),
            "optimizer": next(iter(trainer.optimizers), None),
            "model": pl_module,
            "run": getattr(sys.modules.get("wandb"), "run", None),
            "start_step": trainer.global_step if self._steps_before is None else self._steps_before,
        }
        self._step = trainer.global_step
        self._batches = []
        self._begin(self.make_recorder(settings))

    @keep_training
    def _begin(self, recorder: Recorder) -> None:
        self.record = recorder.begin()

    @keep_training
    def on_train_batch_start(self, *_: Any) -> None:
        """Count training time again after a validation, and mark the first batch of a step as loaded."""
        if self.record.is_paused:
            self.record.resume()
        if not self._batches:
            self.record.mark_batch_ready()

    @keep_training
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, at: int) -> None:
        """Add a micro-batch; after the last one of a step, record the step."""
        self._batches.append((self._count_samples(trainer, batch, at), self._find_loss(outputs)))
        if trainer.global_step == self._step:
            return
        samples = add_known([samples for samples, _ in self._batches])
        loss = self._compute_mean_loss(trainer, pl_module)
        self._step = trainer.global_step
        self._batches = []
        epoch = None
        if math.isfinite(trainer.num_training_batches):  # an iterable data set has no length
            epoch = trainer.current_epoch + (at + 1) / trainer.num_training_batches
        self.record.step(loss=loss, samples=samples, epoch=epoch)

    def _count_samples(self, trainer: Any, batch: Any, at: int) -> int | None:
        if self.count is not None:
            return self.count_samples(batch)
        samples = count_batch_samples(trainer.train_dataloader, at)
        if samples is None:
            self.warn_of_samples()
        return samples

    def _find_loss(self, outputs: Any) -> Any:
        """Return the loss that `training_step` has returned, a number or a tensor with one; else None.

        With manual optimization it may return anything.
        """
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):
            if loss.numel() != 1 or loss.is_complex():
                return None
            at_least_fp32 = torch.promote_types(loss.dtype, torch.float32)  # for a sum of 16-bit losses
            return loss.detach().reshape(()).to(self.record.device, at_least_fp32)
        return find_number(loss)

    def _compute_mean_loss(self, trainer: Any, pl_module: Any) -> Any:
        """Return the mean loss over the batches of a step; None where it is not known."""
        losses = [loss for _, loss in self._batches if loss is not None]
        if not losses:
            return None
        if pl_module.automatic_optimization:
            # Lightning divided each loss by this number, also where an epoch ends with fewer batches.
            return sum(losses) * (trainer.accumulate_grad_batches / len(losses))
        if len(self._batches) > 1:
            self.warn_once(
                "loss",
                "a step of several batches in manual optimization is recorded without its loss: "
                "it is not known whether the module divided it by their number",
            )
            return None
        return losses[0]

    @keep_training
    def on_validation_start(self, trainer: Any, *_: Any) -> None:
        """Pause the training time."""
        if self.record:  # none while the sanity check runs
            self.record.pause()
            self._before = dict(trainer.callback_metrics)

    @keep_training
    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        """Record the metrics of the validation."""
        if self.record:
            # The trainer keeps the training's metrics in the same dict. The validation puts in new objects.
            all_metrics = trainer.callback_metrics.items()
            new = {key: value for key, value in all_metrics if value is not self._before.get(key)}
            names = name_metrics(new) if self._names is None else self._names
            self.evaluate({names[key]: new[key] for key in new if names.get(key)})

    @keep_training
    def on_save_checkpoint(self, *_: Any) -> None:
        """Pause the training time."""
        if self.record:
            self.record.pause()

    @keep_training
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
