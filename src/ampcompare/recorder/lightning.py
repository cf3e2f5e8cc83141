"""Under Lightning, `lightning` or `pytorch_lightning`: `Trainer(callbacks=[RecorderCallback()])`."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ampcompare.errors import UserError
from ampcompare.recorder.recorder import Recorder

VALIDATION = re.compile(r"val(?:id(?:ation)?)?[_/](.+)")
OLD, NEW = "pytorch_lightning", "lightning.pytorch"
try:
    library: Any = import_module(OLD if OLD in sys.modules and NEW not in sys.modules else NEW)
    count = import_module(f"{library.__name__}.utilities.data").extract_batch_size
except ImportError:
    raise UserError(
        "ampcompare.recorder.lightning: no Lightning is installed; pip install lightning"
    ) from None


class RecorderCallback(library.Callback):
    """Records `Trainer.fit`. `options` are the Recorder's; what they leave out the trainer says: backend (its
    precision), loss scale, optimizer, model, the seed of `seed_everything`, an open W&B run. `names`: of the
    validation's metrics in the record; else `val_acc` is `accuracy`, another `val_NAME` NAME (also `valid_`,
    `validation_`, `val/`)."""

    def __init__(
        self, names: Mapping[str, str] | None = None, samples: Callable[[Any], int] = count, **options: Any
    ) -> None:
        self._names, self._count, self._options = names, samples, options
        self.record: Any = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        seed = os.environ.get("PL_GLOBAL_SEED", "")
        told: dict[str, Any] = {"backend": str(trainer.precision), "seed": int(seed) if seed else None}
        told |= {"model": pl_module, "optimizer": next(iter(trainer.optimizers), None)}
        told |= {"scaler": getattr(trainer.precision_plugin, "scaler", None)}
        told |= {"batch_size": getattr(trainer.train_dataloader, "batch_size", None)}
        told |= {"run": getattr(sys.modules.get("wandb"), "run", None)}
        told |= {"start_step": trainer.global_step}  # of a checkpoint
        self.record = Recorder(**told | self._options).begin()
        self._step, self._samples, self._loss = trainer.global_step, 0, None

    def on_train_batch_start(self, *_: Any) -> None:
        if self.record.is_paused:
            self.record.resume()
        if not self._samples:
            self.record.fetched()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, at: int) -> None:
        self._samples += self._count(batch)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        self._loss = loss if self._loss is None else self._loss + loss  # each has its share of the step's
        if trainer.global_step != self._step:
            epoch = trainer.current_epoch + (at + 1) / trainer.num_training_batches
            self.record.step(loss=self._loss, samples=self._samples, epoch=epoch)
            self._step, self._samples, self._loss = trainer.global_step, 0, None

    def on_validation_start(self, *_: Any) -> None:
        if self.record:  # none while the sanity check runs
            self.record.pause()

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        if self.record:
            found = trainer.callback_metrics
            names = {key: name_of(key) for key in found} if self._names is None else self._names
            self.record.evaluate(**{names[key]: found[key] for key in found if names.get(key)})

    def on_save_checkpoint(self, *_: Any) -> None:
        if self.record:
            self.record.pause()

    def on_train_end(self, trainer: Any, pl_module: Any, problem: BaseException | None = None) -> None:
        if self.record:
            self.record.close(problem)
        self.record = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        is_sigterm = "SIGTERM" in type(exception).__name__  # Lightning's own has no code
        self.on_train_end(trainer, pl_module, SystemExit(143) if is_sigterm else exception)


def name_of(key: str) -> str:
    """What a validation's metric is called in the record, by its key here; nothing for any other metric."""
    found = VALIDATION.fullmatch(key)
    return "" if found is None else "accuracy" if found[1] == "acc" else found[1]
